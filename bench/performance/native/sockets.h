// Sockets of one epoll thread: those that a peer dialled (the replica's) and our own (the clients').

#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

using Ns = int64_t;

inline Ns now() {
  timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1000000000LL + at.tv_nsec;
}

[[noreturn]] inline void fail(const std::string& why) {
  printf("failed %s\n", why.c_str());
  fflush(stdout);
  _exit(1);
}

struct Socket {
  int fd = -1;
  bool is_client = false;
  int stream = -1;  // whose request this connection carries
  std::string in, out;
  bool waits_to_write = false;
};

class Sockets {
 protected:
  Sockets() {
    poll_ = epoll_create1(0);
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int one = 1;
    setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) || listen(listener_, 4096)) fail("listen");
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    watch(listener_, &listener_, EPOLLIN);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);  // a second replica: the same port of 127.0.0.2
    second_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(second_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(second_, reinterpret_cast<sockaddr*>(&address), size) || listen(second_, 4096)) fail("listen");
    watch(second_, &listener_, EPOLLIN);
    watch(0, &stdin_, EPOLLIN);
    printf("ready %d\n", ntohs(address.sin_port));
    fflush(stdout);
  }

  virtual ~Sockets() = default;
  virtual void read_commands() = 0;
  virtual void received(Socket* socket) = 0;
  virtual void closed(Socket* socket) = 0;

  void watch(int fd, void* what, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = what;
    epoll_ctl(poll_, EPOLL_CTL_ADD, fd, &event);
  }

  // Sleeps to the nanosecond: whole milliseconds would have it spin before each chunk that is due.
  void turn(Ns wait) {
    epoll_event events[256];
    timespec timeout{wait / 1000000000, wait % 1000000000};
    int count = epoll_pwait2(poll_, events, 256, wait < 0 ? nullptr : &timeout, nullptr);
    for (int i = 0; i < count; ++i) {
      void* what = events[i].data.ptr;
      if (what == &listener_) {
        accept_all();
      } else if (what == &stdin_) {
        read_commands();
      } else {
        auto* socket = static_cast<Socket*>(what);
        if (socket->fd < 0) continue;
        if (events[i].events & EPOLLOUT) flush(socket);
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(socket);
      }
    }
    for (auto* socket : dead_) delete socket;
    dead_.clear();
  }

  Socket* dial(int port) {
    auto* made = new Socket;
    made->is_client = true;
    made->fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    if (connect(made->fd, reinterpret_cast<sockaddr*>(&address), sizeof address)) fail("connect");
    adopt(made);
    return made;
  }

  void receive(Socket* socket) {
    char data[65536];
    while (true) {
      ssize_t got = read(socket->fd, data, sizeof data);
      if (got > 0) {
        socket->in.append(data, got);
        if (got == static_cast<ssize_t>(sizeof data)) continue;
        break;
      }
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
      closed(socket);
      return;
    }
    received(socket);
  }

  void send(Socket* socket, const std::string& data) {
    if (socket->out.empty()) {
      ssize_t sent = write(socket->fd, data.data(), data.size());
      if (sent == static_cast<ssize_t>(data.size())) return;
      if (sent < 0) sent = 0;
      socket->out.assign(data, sent);
    } else {
      socket->out += data;
    }
    set_waiting(socket, true);
  }

  void flush(Socket* socket) {
    ssize_t sent = write(socket->fd, socket->out.data(), socket->out.size());
    if (sent > 0) socket->out.erase(0, sent);
    if (socket->out.empty()) set_waiting(socket, false);
  }

  void set_waiting(Socket* socket, bool waits) {
    if (socket->waits_to_write == waits) return;
    socket->waits_to_write = waits;
    epoll_event event{};
    event.events = waits ? EPOLLIN | EPOLLOUT : EPOLLIN;
    event.data.ptr = socket;
    epoll_ctl(poll_, EPOLL_CTL_MOD, socket->fd, &event);
  }

  void drop(Socket* socket) {
    if (socket->fd < 0) return;
    close(socket->fd);
    socket->fd = -1;
    dead_.push_back(socket);
  }

 private:
  void adopt(Socket* socket) {
    int one = 1;
    setsockopt(socket->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(socket->fd, F_SETFL, fcntl(socket->fd, F_GETFL) | O_NONBLOCK);
    watch(socket->fd, socket, EPOLLIN);
  }

  void accept_all() {
    int fd;
    for (int from : {listener_, second_}) {
      while ((fd = accept4(from, nullptr, nullptr, SOCK_NONBLOCK)) >= 0) {
        auto* made = new Socket;
        made->fd = fd;
        adopt(made);
      }
    }
  }

  int poll_, listener_, second_, stdin_ = 0;
  std::vector<Socket*> dead_;
};
