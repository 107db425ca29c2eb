// A fake SSE replica and its clients in one epoll thread, so that one clock times both ends of a chunk.
//
//   loadgen            prints `ready PORT` (the replica's), then takes commands on standard input, one a line:
//     run mode=lock|paced|short port=P streams=N seconds=S warm=W [rate=R] [chunks=K]
//     hold port=P streams=N        opens N streams, sends each its first chunk, prints `held N`
//     release                      ends the streams that are held, prints `released N`
//
// lock: chunk k+1 is written when its client has read chunk k, so that nothing on the way can merge two.
// paced: R chunks a second and stream. short: answers that are no streams, one after another on each connection.
// chunks: requests of so many chunks, one after another; 0 is one request for the whole run.
//
// Each event carries its stream and number, and a client that reads anything else ends the run with `failed WHY`.
// `run` prints `start` when it begins to count and `stop` when it has counted, then one line of JSON.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Ns = int64_t;

Ns now() {
  timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1000000000LL + at.tv_nsec;
}

[[noreturn]] void fail(const std::string& why) {
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

struct Stream {
  int id = 0;
  Socket* client = nullptr;
  Socket* replica = nullptr;  // the connection on which its request is answered now
  bool head_read = false, chunked = false, ended = true;
  std::string events;  // undecoded end of the body
  long body_left = -1;
  int written = 0, read = 0;  // chunks of this request
  Ns asked_at = 0;
  std::vector<Ns> written_at;
  bool over = false;
};

enum class Mode { kLock, kPaced, kShort, kHold };

struct Due {
  Ns at;
  int stream;
  bool operator<(const Due& other) const { return at > other.at; }
};

struct Figures {
  long chunks = 0, requests = 0, merged = 0;
  std::vector<float> chunk_us, first_us, request_us;
};

class Generator {
 public:
  Generator() {
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
    watch(0, &stdin_, EPOLLIN);
    printf("ready %d\n", ntohs(address.sin_port));
    fflush(stdout);
  }

  void serve() {
    while (!closed_) turn(-1);
  }

 private:
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

  // --- commands ---------------------------------------------------------------------------------

  void read_commands() {
    char data[4096];
    ssize_t got = read(0, data, sizeof data);
    if (got <= 0) {
      closed_ = true;
      return;
    }
    commands_.append(data, got);
    size_t end;
    while ((end = commands_.find('\n')) != std::string::npos) {
      std::string line = commands_.substr(0, end);
      commands_.erase(0, end + 1);
      obey(line);
    }
  }

  void obey(const std::string& line) {
    std::map<std::string, std::string> given;
    char* rest = nullptr;
    std::string copy = line;
    char* word = strtok_r(copy.data(), " ", &rest);
    std::string verb = word ? word : "";
    while ((word = strtok_r(nullptr, " ", &rest))) {
      std::string pair = word;
      size_t at = pair.find('=');
      if (at == std::string::npos) fail("a command it does not know: " + line);
      given[pair.substr(0, at)] = pair.substr(at + 1);
    }
    auto number = [&](const char* name, double otherwise) {
      auto found = given.find(name);
      return found == given.end() ? otherwise : atof(found->second.c_str());
    };
    if (verb == "run") {
      const std::string mode = given["mode"];
      mode_ = mode == "paced" ? Mode::kPaced : mode == "short" ? Mode::kShort : Mode::kLock;
      rate_ = number("rate", 50);
      chunks_a_request_ = static_cast<int>(number("chunks", 0));
      run(static_cast<int>(number("port", 0)), static_cast<int>(number("streams", 1)), number("warm", 0.5),
          number("seconds", 2));
    } else if (verb == "hold") {
      mode_ = Mode::kHold;
      chunks_a_request_ = 0;
      open(static_cast<int>(number("port", 0)), static_cast<int>(number("streams", 1)));
      auto all_read = [&] {
        return std::all_of(streams_.begin(), streams_.end(), [](auto& one) { return one->read > 0; });
      };
      while (!all_read()) turn(100000000);
      printf("held %zu\n", streams_.size());
      fflush(stdout);
    } else if (verb == "release") {
      size_t count = streams_.size();
      finish();
      printf("released %zu\n", count);
      fflush(stdout);
    } else {
      fail("a command it does not know: " + line);
    }
  }

  // --- one run ----------------------------------------------------------------------------------

  void run(int port, int streams, double warm_s, double seconds) {
    counting_ = false;
    figures_ = Figures{};
    dues_ = {};
    open(port, streams);
    play_until(now() + static_cast<Ns>(warm_s * 1e9));
    printf("start\n");
    fflush(stdout);
    rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    Ns began = now();
    counting_ = true;
    play_until(began + static_cast<Ns>(seconds * 1e9));
    counting_ = false;
    double took = (now() - began) / 1e9;
    getrusage(RUSAGE_SELF, &after);
    printf("stop\n");
    fflush(stdout);
    finish();
    auto cpu = [](const rusage& of) {
      return of.ru_utime.tv_sec + of.ru_stime.tv_sec + (of.ru_utime.tv_usec + of.ru_stime.tv_usec) / 1e6;
    };
    printf("{\"seconds\":%.6f,\"chunks\":%ld,\"requests\":%ld,\"merged\":%ld,\"own_cpu\":%.3f", took,
           figures_.chunks, figures_.requests, figures_.merged, (cpu(after) - cpu(before)) / took);
    print("chunk_us", figures_.chunk_us);
    print("first_us", figures_.first_us);
    print("request_us", figures_.request_us);
    printf("}\n");
    fflush(stdout);
  }

  static void print(const char* name, std::vector<float>& values) {
    if (values.empty()) return;
    std::sort(values.begin(), values.end());
    auto at = [&](double share) { return values[std::min(values.size() - 1, size_t(share * values.size()))]; };
    printf(",\"%s\":{\"n\":%zu,\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"max\":%.1f}", name, values.size(), at(.5),
           at(.9), at(.99), values.back());
  }

  void open(int port, int streams) {
    began_ = now();
    ending_ = false;
    for (int id = 0; id < streams; ++id) {
      auto stream = std::make_unique<Stream>();
      stream->id = id;
      stream->client = dial(port);
      stream->client->stream = id;
      streams_.push_back(std::move(stream));
    }
    for (auto& stream : streams_) {
      if (mode_ == Mode::kPaced) pause(0.02 / streams);  // not all in one moment
      ask(stream.get());
    }
  }

  void pause(double seconds) {
    Ns until = now() + static_cast<Ns>(seconds * 1e9);
    for (Ns left = until - now(); left > 0; left = until - now()) turn(left);
  }

  void play_until(Ns until) {
    while (now() < until) {
      Ns wait = until - now();
      if (!dues_.empty()) wait = std::min(wait, dues_.top().at - now());
      turn(std::max<Ns>(wait, 0));
      while (!dues_.empty() && dues_.top().at <= now()) {
        Due due = dues_.top();
        dues_.pop();
        Stream* stream = streams_[due.stream].get();
        if (stream->ended) continue;
        write_chunk(stream);
        dues_.push({due.at + static_cast<Ns>(1e9 / rate_), due.stream});
      }
    }
  }

  void finish() {
    ending_ = true;
    dues_ = {};
    for (auto& stream : streams_) {
      if (mode_ == Mode::kPaced || mode_ == Mode::kHold) end_answer(stream.get());
    }
    Ns until = now() + 20000000000LL;
    auto all_over = [&] {
      return std::all_of(streams_.begin(), streams_.end(), [](auto& one) { return one->over; });
    };
    while (!all_over()) {
      if (now() > until) fail("streams that do not end");
      turn(50000000);
    }
    for (auto& stream : streams_) drop(stream->client);
    streams_.clear();
  }

  // --- the client -------------------------------------------------------------------------------

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

  void adopt(Socket* socket) {
    int one = 1;
    setsockopt(socket->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(socket->fd, F_SETFL, fcntl(socket->fd, F_GETFL) | O_NONBLOCK);
    watch(socket->fd, socket, EPOLLIN);
  }

  void ask(Stream* stream) {
    stream->head_read = stream->ended = false;
    stream->events.clear();
    stream->body_left = -1;
    stream->written = stream->read = 0;
    stream->written_at.clear();
    stream->replica = nullptr;
    bool streams = mode_ != Mode::kShort;
    std::string body = std::string(R"({"model":"bench","stream":)") + (streams ? "true" : "false") +
                       R"(,"messages":[{"role":"user","content":"Tell me of the sea."}]})";
    char head[512];
    int size = snprintf(head, sizeof head,
                        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
                        "content-length: %zu\r\nx-bench-stream: %d\r\n\r\n",
                        body.size(), stream->id);
    stream->asked_at = now();
    send(stream->client, std::string(head, size) + body);
  }

  void read_answer(Stream* stream) {
    Socket* socket = stream->client;
    if (!stream->head_read) {
      size_t end = socket->in.find("\r\n\r\n");
      if (end == std::string::npos) return;
      std::string head = socket->in.substr(0, end + 2);
      for (auto& letter : head) letter = static_cast<char>(tolower(letter));
      if (head.compare(0, 12, "http/1.1 200") != 0) fail("an answer that is no 200: " + head.substr(0, 60));
      stream->chunked = head.find("transfer-encoding: chunked") != std::string::npos;
      size_t length = head.find("content-length: ");
      if (length != std::string::npos) stream->body_left = atol(head.c_str() + length + 16);
      if (!stream->chunked && stream->body_left < 0) fail("an answer without a length");
      socket->in.erase(0, end + 4);
      stream->head_read = true;
    }
    if (!stream->chunked) {
      if (static_cast<long>(socket->in.size()) < stream->body_left) return;
      stream->events = socket->in.substr(0, stream->body_left);
      socket->in.erase(0, stream->body_left);
      check_short(stream);
      answer_over(stream);
      return;
    }
    size_t at = 0;
    bool over = false;
    while (true) {
      size_t line = socket->in.find("\r\n", at);
      if (line == std::string::npos) break;
      size_t size = strtoul(socket->in.c_str() + at, nullptr, 16);
      if (socket->in.size() < line + 2 + size + 2) break;
      stream->events.append(socket->in, line + 2, size);
      at = line + 2 + size + 2;
      if (size == 0) {
        over = true;
        break;
      }
    }
    socket->in.erase(0, at);
    read_events(stream);
    if (over) answer_over(stream);
  }

  void read_events(Stream* stream) {
    size_t at = 0, end;
    int found = 0;
    while ((end = stream->events.find("\n\n", at)) != std::string::npos) {
      std::string_view event(stream->events.data() + at, end - at);
      at = end + 2;
      size_t content = event.find("\"content\":\"");
      if (content == std::string_view::npos) continue;  // the ends
      char expected[48];
      int size = snprintf(expected, sizeof expected, "s%d.%d \"", stream->id, stream->read);
      if (event.compare(content + 11, size, expected) != 0) fail("an event out of order");
      Ns arrived = now();
      if (counting_) {
        ++figures_.chunks;
        if (stream->read == 0) {
          figures_.first_us.push_back((arrived - stream->asked_at) / 1e3f);
        } else {
          figures_.chunk_us.push_back((arrived - stream->written_at[stream->read]) / 1e3f);
        }
      }
      ++stream->read;
      ++found;
      if (mode_ == Mode::kLock && !stream->ended) {
        bool last = ending_ || (chunks_a_request_ && stream->written >= chunks_a_request_);
        last ? end_answer(stream) : write_chunk(stream);
      }
    }
    stream->events.erase(0, at);
    if (counting_ && found > 1) ++figures_.merged;
  }

  void check_short(Stream* stream) {
    char expected[48];
    snprintf(expected, sizeof expected, "\"content\":\"s%d.0 \"", stream->id);
    if (stream->events.find(expected) == std::string::npos) fail("an answer to another request");
    if (counting_) figures_.request_us.push_back((now() - stream->asked_at) / 1e3f);
  }

  void answer_over(Stream* stream) {
    if (counting_) ++figures_.requests;
    if (!ending_ && (mode_ == Mode::kShort || chunks_a_request_)) {
      ask(stream);
    } else if (ending_) {
      stream->over = true;
    } else {
      fail("a stream that ended too soon");
    }
  }

  // --- the replica ------------------------------------------------------------------------------

  void accept_all() {
    int fd;
    while ((fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK)) >= 0) {
      auto* made = new Socket;
      made->fd = fd;
      adopt(made);
    }
  }

  void read_request(Socket* socket) {
    while (true) {
      size_t end = socket->in.find("\r\n\r\n");
      if (end == std::string::npos) return;
      std::string head = socket->in.substr(0, end + 2);
      for (auto& letter : head) letter = static_cast<char>(tolower(letter));
      size_t length = head.find("content-length: ");
      size_t body = length == std::string::npos ? 0 : atol(head.c_str() + length + 16);
      if (socket->in.size() < end + 4 + body) return;
      size_t id = head.find("x-bench-stream: ");
      socket->in.erase(0, end + 4 + body);
      if (id == std::string::npos) {  // somebody looks whether it lives
        send(socket, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}");
        continue;
      }
      size_t number = atol(head.c_str() + id + 16);
      if (number >= streams_.size()) fail("a request of nobody");
      answer(streams_[number].get(), socket);
    }
  }

  void answer(Stream* stream, Socket* socket) {
    stream->replica = socket;
    socket->stream = stream->id;
    if (mode_ == Mode::kShort) {
      char body[400];
      int size = snprintf(body, sizeof body,
                          R"({"id":"chatcmpl-1","object":"chat.completion","created":1772423572,"model":"bench",)"
                          R"("choices":[{"index":0,"message":{"role":"assistant","content":"s%d.0 "},)"
                          R"("finish_reason":"stop"}],"usage":{"prompt_tokens":6,"completion_tokens":3}})",
                          stream->id);
      char head[160];
      int head_size = snprintf(head, sizeof head,
                               "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n", size);
      stream->ended = true;
      send(socket, std::string(head, head_size) + std::string(body, size));
      return;
    }
    send(socket, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
    write_chunk(stream);
    if (mode_ == Mode::kPaced) {
      // Each stream has a place of its own in the period, whenever its request came: what lets requests through in
      // bursts would be measured under another load otherwise.
      Ns period = static_cast<Ns>(1e9 / rate_);
      Ns place = began_ + period * stream->id / static_cast<Ns>(streams_.size());
      dues_.push({place + ((now() - place) / period + 1) * period, stream->id});
    }
  }

  void write_chunk(Stream* stream) {
    if (!stream->replica) return;
    char event[320];
    int size = snprintf(event, sizeof event,
                        R"(data: {"id":"chatcmpl-00000000000000000000000000000001","object":"chat.completion.chunk",)"
                        R"("created":1772423572,"model":"bench","choices":[{"index":0,"delta":{"content":"s%d.%d "},)"
                        R"("logprobs":null,"finish_reason":null}]})"
                        "\n\n",
                        stream->id, stream->written++);
    char framed[360];
    int framed_size = snprintf(framed, sizeof framed, "%x\r\n%s\r\n", size, event);
    stream->written_at.push_back(now());
    send(stream->replica, std::string(framed, framed_size));
  }

  void end_answer(Stream* stream) {
    if (stream->ended || !stream->replica) return;
    stream->ended = true;
    std::string last = "data: {\"id\":\"b\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
                       "data: [DONE]\n\n";
    char size[16];
    snprintf(size, sizeof size, "%zx\r\n", last.size());
    send(stream->replica, size + last + "\r\n0\r\n\r\n");
  }

  // --- bytes ------------------------------------------------------------------------------------

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
      if (socket->is_client && !ending_) fail("a connection that was closed");
      drop(socket);
      return;
    }
    if (socket->is_client) {
      read_answer(streams_[socket->stream].get());
    } else {
      read_request(socket);
    }
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
    for (auto& stream : streams_) {
      if (stream->replica == socket) stream->replica = nullptr;
    }
    close(socket->fd);
    socket->fd = -1;
    dead_.push_back(socket);
  }

  int poll_, listener_, stdin_ = 0;
  Ns began_ = 0;
  bool closed_ = false, ending_ = false, counting_ = false;
  std::string commands_;
  Mode mode_ = Mode::kLock;
  double rate_ = 50;
  int chunks_a_request_ = 0;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<Socket*> dead_;
  std::priority_queue<Due> dues_;
  Figures figures_;
};

}  // namespace

int main() {
  rlimit limit{65536, 65536};
  setrlimit(RLIMIT_NOFILE, &limit);
  Generator().serve();
}
