// What a C++ gRPC server costs that decides nothing: each response body goes back as it came.
//
//   grpc_echo unix:PATH POOL        prints `ready`
//
// The callback API on raw ByteBuffers; a body is found and wrapped by hand, since a protobuf parser would cost
// more than all else here. As the product: the delivery stream answers a request's headers and body, and names the
// pool for the route; the attempt stream leaves with the first part of an answer; logs are read and dropped.

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <csignal>
#include <cstdio>
#include <deque>
#include <mutex>
#include <string>

namespace {

std::string pool;

void put_varint(std::string* out, size_t value) {
  while (value > 0x7f) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

std::string field(int number, const std::string& value) {
  std::string out;
  put_varint(&out, number << 3 | 2);
  put_varint(&out, value.size());
  return out + value;
}

// A length-delimited field at the begin of `data`: its number, and its value's place. False at the end.
bool read_field(const std::string& data, size_t* at, int* number, size_t* begin, size_t* size) {
  auto varint = [&](size_t* value) {
    *value = 0;
    for (int shift = 0; *at < data.size() && shift < 64; shift += 7) {
      unsigned char byte = data[(*at)++];
      *value |= static_cast<size_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  };
  size_t tag, length;
  while (varint(&tag)) {
    *number = static_cast<int>(tag >> 3);
    if ((tag & 7) == 0) {
      if (!varint(&length)) return false;
      *begin = length;  // a number stands in for itself
      *size = 0;
      return true;
    }
    if ((tag & 7) != 2 || !varint(&length) || *at + length > data.size()) return false;
    *begin = *at;
    *size = length;
    *at += length;
    return true;
  }
  return false;
}

std::string flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string out;
  if (buffer.Dump(&slices).ok()) {
    for (const auto& slice : slices) out.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return out;
}

grpc::ByteBuffer wrap(const std::string& data) {
  grpc::Slice slice(data);
  return grpc::ByteBuffer(&slice, 1);
}

// header_mutation that sets the pool's header, in a CommonResponse (2), as set_headers (1) of one HeaderValueOption.
std::string build_common() {
  std::string header = field(1, "x-envoy-ext-pool") + field(3, pool);
  std::string option = field(1, header) + std::string("\x18\x02", 2);  // append_action: overwrite or add
  return field(2, field(1, option));
}

class Echo : public grpc::ServerGenericBidiReactor {
 public:
  explicit Echo(grpc::GenericCallbackServerContext* context) {
    auto role = context->client_metadata().find("x-envoy-ext-role");
    is_process_ = context->method().find("ExternalProcessor") != std::string::npos;
    is_delivery_ = role != context->client_metadata().end() && role->second == "delivery";
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    std::lock_guard<std::mutex> held(lock_);
    if (!ok) {
      reading_ = false;
      finish_if_idle();
      return;
    }
    if (is_process_) answer(flatten(request_));
    if (leaving_) {
      reading_ = false;
      finish_if_idle();
    } else {
      StartRead(&request_);
    }
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> held(lock_);
    writing_ = false;
    if (!ok) answers_.clear();
    write_next();
    finish_if_idle();
  }

  void OnDone() override { delete this; }

 private:
  // ProcessingRequest: request_headers 2, response_headers 3, request_body 4, response_body 5, response_trailers 7.
  // ProcessingResponse: request_headers 1, response_headers 2, request_body 3, response_body 4, response_trailers 6.
  void answer(const std::string& message) {
    size_t at = 0, begin, size;
    int number;
    while (read_field(message, &at, &number, &begin, &size)) {
      switch (number) {
        case 2:
          send(field(1, field(1, "")));
          return;
        case 3:
          send(field(2, field(1, "")));
          return;
        case 4:
          send(field(3, field(1, build_common())));
          return;
        case 5:
          if (is_delivery_) {
            send_body(message.substr(begin, size));
          } else {
            send(field(4, field(1, "")));
            leaving_ = true;
          }
          return;
        case 7:
          send(field(6, ""));
          return;
        default:
          break;
      }
    }
  }

  // HttpBody: body 1, end_of_stream 2. CommonResponse.body_mutation 3, streamed_response 3, body 1, end_of_stream 2.
  void send_body(const std::string& message) {
    size_t at = 0, begin, size;
    int number;
    std::string streamed;
    while (read_field(message, &at, &number, &begin, &size)) {
      if (number == 1) streamed += field(1, message.substr(begin, size));
      if (number == 2 && begin) {
        streamed += std::string("\x10\x01", 2);
        leaving_ = true;
      }
    }
    send(field(4, field(1, field(3, field(3, streamed)))));
  }

  void send(const std::string& message) {
    answers_.push_back(wrap(message));
    write_next();
  }

  void write_next() {
    if (writing_ || answers_.empty()) return;
    writing_ = true;
    response_ = std::move(answers_.front());
    answers_.pop_front();
    StartWrite(&response_);
  }

  void finish_if_idle() {
    if (!reading_ && !writing_ && answers_.empty() && !finished_) {
      finished_ = true;
      Finish(grpc::Status::OK);
    }
  }

  std::mutex lock_;  // a read and a write may be done at once
  grpc::ByteBuffer request_, response_;
  std::deque<grpc::ByteBuffer> answers_;
  bool is_process_ = false, is_delivery_ = false;
  bool reading_ = true, writing_ = false, leaving_ = false, finished_ = false;
};

class Service : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    return new Echo(context);
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  pool = argv[2];
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  Service service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(argv[1], grpc::InsecureServerCredentials());
  builder.RegisterCallbackGenericService(&service);
  auto server = builder.BuildAndStart();
  if (!server) return 1;
  printf("ready\n");
  fflush(stdout);
  int which;
  sigwait(&signals, &which);
  _exit(0);
}
