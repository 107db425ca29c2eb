// A fake SSE replica and its clients in one epoll thread, so that one clock times both ends of a chunk.
//
//   loadgen            prints `ready PORT` (of two replicas, 127.0.0.1 and 127.0.0.2), then takes commands on standard
//                      input, one a line:
//     run mode=lock|paced|short port=P streams=N seconds=S warm=W [rate=R] [chunks=K] [pause=P] [key=K]
//     hold port=P streams=N        opens N streams, sends each its first chunk, prints `held N`
//     release                      ends the streams that are held, prints `released N`
//
// lock: chunk k+1 is written when its client has read chunk k, so that nothing on the way can merge two.
// paced: R chunks a second and stream; what warms up begins when all streams have had their first.
// short: answers that are no streams, one after another on each connection.
// chunks: requests of so many chunks, one after another, P seconds apart; 0 is one request for the whole run.
//
// Each event carries its stream and number; a client that reads anything else ends, and the run is `spoiled`.
// `run` prints `start` when it begins to count and `stop` when it has counted, then one line of JSON.

#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "replica.h"

namespace {

struct Figures {
  long chunks = 0, requests = 0, merged = 0;
  std::vector<float> chunk_us, first_us, request_us;
};

class Generator : public Replica {
 public:
  void serve() {
    while (!closed_) turn(-1);
  }

 private:
  // --- commands ---------------------------------------------------------------------------------

  void read_commands() override {
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
    authorization_ = given.count("key") ? "authorization: Bearer " + given["key"] + "\r\n" : "";
    if (verb == "run") {
      const std::string mode = given["mode"];
      mode_ = mode == "paced" ? Mode::kPaced : mode == "short" ? Mode::kShort : Mode::kLock;
      rate_ = number("rate", 50);
      chunks_a_request_ = static_cast<int>(number("chunks", 0));
      pause_ = static_cast<Ns>(number("pause", 0) * 1e9);
      run(static_cast<int>(number("port", 0)), static_cast<int>(number("streams", 1)), number("warm", 0.5),
          number("seconds", 2));
    } else if (verb == "hold") {
      mode_ = Mode::kHold;
      chunks_a_request_ = 0;
      open(static_cast<int>(number("port", 0)), static_cast<int>(number("streams", 1)));
      while (!all_begun()) turn(100000000);
      if (!spoiled_.empty()) fail(spoiled_);
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
    spoiled_.clear();
    dues_ = {};
    open(port, streams);
    for (Ns until = now() + 60000000000LL; mode_ == Mode::kPaced && !all_begun() && now() < until;) {
      play_until(now() + 50000000);
    }
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
    printf(",\"spoiled\":\"%s\"}\n", spoiled_.c_str());
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

  bool all_begun() const {
    return std::all_of(streams_.begin(), streams_.end(), [](auto& one) { return one->read > 0 || one->over; });
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
        if (stream->rests) {
          stream->rests = false;
          ask(stream);
          continue;
        }
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
      if (stream->rests) stream->over = true;
    }
    Ns until = now() + 20000000000LL;
    auto all_over = [&] {
      return std::all_of(streams_.begin(), streams_.end(), [](auto& one) { return one->over; });
    };
    while (!all_over()) {
      if (now() > until) {
        for (auto& stream : streams_) {
          if (!stream->over) spoil(stream.get(), "a stream that did not end");
        }
      }
      turn(50000000);
    }
    for (auto& stream : streams_) {
      if (stream->client) drop(stream->client);
    }
    streams_.clear();
  }

  // What a client should not have read, or not so: the run goes on without this stream, and says so at its end.
  void spoil(Stream* stream, const std::string& why) {
    if (spoiled_.empty()) {
      for (char letter : why) spoiled_ += letter < ' ' || letter == '"' || letter == '\\' ? ' ' : letter;
    }
    stream->over = stream->ended = true;
    if (stream->client) drop(stream->client);
    stream->client = nullptr;
  }

  // --- the client -------------------------------------------------------------------------------

  void ask(Stream* stream) {
    stream->head_read = stream->ended = false;
    stream->events.clear();
    stream->body_left = -1;
    stream->written = stream->read = 0;
    stream->written_at.clear();
    stream->replica = nullptr;
    bool streams = mode_ != Mode::kShort;
    std::string body = std::string(R"({"model":"bench","stream":)") + (streams ? "true" : "false") +
                       R"(,"messages":[{"role":"user","content":"Tell me of the sea, stream #)" +
                       std::to_string(stream->id) + R"("}]})";
    char head[512];
    int size = snprintf(head, sizeof head,
                        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
                        "%scontent-length: %zu\r\n\r\n",
                        authorization_.c_str(), body.size());
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
      if (head.compare(0, 12, "http/1.1 200") != 0) {
        return spoil(stream, "no 200: " + socket->in.substr(0, 16) + socket->in.substr(end + 4, 200));
      }
      stream->chunked = head.find("transfer-encoding: chunked") != std::string::npos;
      size_t length = head.find("content-length: ");
      if (length != std::string::npos) stream->body_left = atol(head.c_str() + length + 16);
      if (!stream->chunked && stream->body_left < 0) return spoil(stream, "an answer without a length");
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
    if (mode_ == Mode::kShort) {
      if (over) check_short(stream);
    } else {
      read_events(stream);
    }
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
      if (event.compare(content + 11, size, expected) != 0) return spoil(stream, "an event out of order");
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
    if (stream->events.find(expected) == std::string::npos) return spoil(stream, "an answer to another request");
    if (counting_) figures_.request_us.push_back((now() - stream->asked_at) / 1e3f);
  }

  void answer_over(Stream* stream) {
    if (stream->over) return;  // spoiled
    if (mode_ != Mode::kShort && stream->read != stream->written) {
      return spoil(stream, "an answer without all its events");
    }
    if (counting_) ++figures_.requests;
    if (!ending_ && (mode_ == Mode::kShort || chunks_a_request_)) {
      if (pause_ == 0) return ask(stream);
      stream->rests = true;
      dues_.push({now() + pause_, stream->id});
    } else if (ending_) {
      stream->over = true;
    } else {
      spoil(stream, "a stream that ended too soon");
    }
  }

  // --- sockets ----------------------------------------------------------------------------------

  void received(Socket* socket) override {
    if (socket->is_client) {
      read_answer(streams_[socket->stream].get());
    } else {
      read_request(socket);
    }
  }

  void closed(Socket* socket) override {
    if (socket->is_client) return spoil(streams_[socket->stream].get(), "a connection that was closed");
    for (auto& stream : streams_) {
      if (stream->replica == socket) stream->replica = nullptr;
    }
    drop(socket);
  }

  bool closed_ = false, ending_ = false, counting_ = false;
  std::string commands_, spoiled_;
  Ns pause_ = 0;
  std::string authorization_;  // for a gateway that asks for a key
  int chunks_a_request_ = 0;
  Figures figures_;
};

}  // namespace

int main() {
  rlimit limit{65536, 65536};
  setrlimit(RLIMIT_NOFILE, &limit);
  Generator().serve();
}
