// The replica: answers requests as its load says, with events that carry their stream and number.

#pragma once

#include <cstring>
#include <memory>
#include <queue>
#include <vector>

#include "sockets.h"

enum class Mode { kLock, kPaced, kShort, kHold };

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
  bool rests = false;  // until its next request is due
};

struct Due {
  Ns at;
  int stream;
  bool operator<(const Due& other) const { return at > other.at; }
};

class Replica : public Sockets {
 protected:
  void read_request(Socket* socket) {
    while (true) {
      size_t end = socket->in.find("\r\n\r\n");
      if (end == std::string::npos) return;
      std::string head = socket->in.substr(0, end + 2);
      for (auto& letter : head) letter = static_cast<char>(tolower(letter));
      size_t length = head.find("content-length: ");
      size_t body = length == std::string::npos ? 0 : atol(head.c_str() + length + 16);
      if (socket->in.size() < end + 4 + body) return;
      // Whose request it is stands in the prompt: not every gateway hands a client's fields on.
      std::string_view asked(socket->in.data() + end + 4, body);
      size_t id = asked.find("stream #");
      size_t number = id == std::string_view::npos ? 0 : atol(asked.data() + id + 8);
      socket->in.erase(0, end + 4 + body);
      if (id == std::string_view::npos) {  // somebody looks whether it lives, or what it serves
        std::string said = head.find("get /v1/models") == 0
                               ? R"({"object":"list","data":[{"id":"bench","object":"model","created":1772423572,)"
                                 R"("owned_by":"bench","max_model_len":4096}]})"
                               : "{}";
        send(socket, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: " +
                         std::to_string(said.size()) + "\r\n\r\n" + said);
        continue;
      }
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
                          R"("finish_reason":"stop"}],"usage":{"prompt_tokens":6,)"
                          R"("completion_tokens":3,"total_tokens":9}})",
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

  Ns began_ = 0;
  Mode mode_ = Mode::kLock;
  double rate_ = 50;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::priority_queue<Due> dues_;
};
