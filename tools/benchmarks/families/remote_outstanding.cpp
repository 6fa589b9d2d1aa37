// SPDX-License-Identifier: Apache-2.0
// Calls per second of one worker at another, with some calls outstanding: the caller begins the next call when the
// oldest answer has come. The callee gives back the bytes that it was given. The floor is a stream socket between the
// same two processes that carries the same bytes there and back, with as many of them under way; both of its ends ask
// again and again without blocking.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <string>
#include <vector>

#include "spawn/face/shmbroker_remote.h"
#include "tools/benchmarks/kit/broker_process.hpp"
#include "tools/benchmarks/kit/crew.hpp"
#include "tools/benchmarks/kit/library.hpp"

namespace shmb::bench {
namespace {

struct OutstandingTask {
  std::uint32_t socket;  // 1: the floor
  std::uint32_t calls, outstanding;
};

void answer_same(void*, shmb_request* request) {
  shmb_content* const content = shmb_request_content(request);
  shmb_payload payload{};
  payload.data = shmb_content_data(content);
  payload.length = shmb_content_length(content);
  (void)shmb_request_answer(request, &payload, nullptr);
}

shmb_remote* join_outstanding(const std::string& socket, int rank) {
  shmb_remote_options options{};
  options.size = sizeof options;
  options.name = rank == 0 ? "caller" : "callee";
  options.address = "localhost:29502";
  options.rank = rank;
  options.world_size = 2;
  options.socket = socket.c_str();
  options.request = answer_same;
  shmb_remote* world = nullptr;
  shmb_error error;
  must_succeed(shmb_remote_init(&options, &world, &error), error);
  return world;
}

bool is_full(ssize_t result) { return result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK); }

// A byte stream's end that carries messages of one size, and never blocks.
class Pipe {
 public:
  Pipe(int socket, std::size_t bytes) : socket_(socket), out_(bytes, std::byte{7}), in_(bytes) {}
  // One more step of what is being written or read; true when a message is complete.
  bool write_some() { return advance(written_, ::send(socket_, out_.data() + written_, left(written_), kFlags)); }
  bool read_some() { return advance(read_, ::recv(socket_, in_.data() + read_, left(read_), MSG_DONTWAIT)); }

 private:
  static constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
  std::size_t left(std::size_t at) const { return out_.size() - at; }
  bool advance(std::size_t& at, ssize_t moved) {
    if (is_full(moved)) return false;
    if (must(static_cast<int>(moved), "a stream socket") == 0) give_up("the other end of the socket is gone");
    at += static_cast<std::size_t>(moved);
    if (at != out_.size()) return false;
    at = 0;
    return true;
  }
  int socket_;
  std::vector<std::byte> out_, in_;
  std::size_t written_ = 0, read_ = 0;
};

class Caller {
 public:
  Caller(const std::string& socket, int stream, std::size_t bytes)
      : world_(join_outstanding(socket, 0)), pipe_(stream, bytes), bytes_(bytes, std::byte{7}) {}

  // Thousands of calls per second.
  double run(const OutstandingTask& task) {
    task.socket != 0 ? stream({1, 1, 1}) : calls({0, 1, 1});  // the other end has come from what it did before
    const double took = timed([&] { task.socket != 0 ? stream(task) : calls(task); });
    return static_cast<double>(task.calls) / took * 1000;
  }

 private:
  void calls(const OutstandingTask& task) {
    std::deque<shmb_future*> under_way;
    for (std::uint32_t begun = 0; begun < task.calls || !under_way.empty();) {
      if (begun < task.calls && under_way.size() < task.outstanding) {
        under_way.push_back(begin());
        ++begun;
        continue;
      }
      finish(under_way.front());
      under_way.pop_front();
    }
  }
  void stream(const OutstandingTask& task) {
    for (std::uint32_t sent = 0, back = 0; back < task.calls;) {
      if (sent < task.calls && sent - back < task.outstanding) sent += pipe_.write_some() ? 1 : 0;
      back += pipe_.read_some() ? 1 : 0;
    }
  }
  shmb_future* begin() {
    shmb_payload what{};
    what.data = bytes_.data();
    what.length = bytes_.size();
    shmb_future* future = nullptr;
    shmb_error error;
    must_succeed(shmb_remote_call(world_, 1, "answer_same", &what, 0, SHMB_FOREVER, &future, &error), error);
    return future;
  }
  void finish(shmb_future* future) {
    shmb_content* content = nullptr;
    shmb_error error;
    must_succeed(shmb_future_wait(future, SHMB_FOREVER, &content, &error), error);
    const auto* data = static_cast<const std::byte*>(shmb_content_data(content));
    if (shmb_content_length(content) != bytes_.size() || data[bytes_.size() - 1] != std::byte{7})
      give_up("the bytes that came back are not those that were sent");
    shmb_future_free(future);
  }

  shmb_remote* world_;
  Pipe pipe_;
  std::vector<std::byte> bytes_;
};

void serve_outstanding(const std::string& socket, int stream, std::size_t bytes, int channel) {
  shmb_remote* const world = join_outstanding(socket, 1);
  Pipe pipe(stream, bytes);
  for (;;) {
    const auto task = hear<OutstandingTask>(channel);
    if (task.socket != 0) {
      for (std::uint32_t read = 0, written = 0; written <= task.calls;) {  // and the first
        if (read <= task.calls) read += pipe.read_some() ? 1 : 0;
        if (written < read) written += pipe.write_some() ? 1 : 0;
      }
      continue;
    }
    char byte;
    shmb_error error;
    while (recv(channel, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0)
      must_succeed(shmb_remote_serve(world, 20'000'000, &error), error);
  }
}

}  // namespace

void run_remote_outstanding(Bench& bench) {
  const bool quick = bench.settings().quick;
  for (const std::size_t bytes : {std::size_t{200}, std::size_t{4096}, std::size_t{60'000}}) {
    auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine);
    int stream[2];
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, stream), "socketpair");
    Crew crew;
    crew.add(Core::client, [&](int channel) {
      Caller caller(broker.socket(), stream[0], bytes);
      for (;;) tell(channel, caller.run(hear<OutstandingTask>(channel)));
    });
    crew.add(Core::server, [&](int channel) { serve_outstanding(broker.socket(), stream[1], bytes, channel); });
    const auto run = [&](const OutstandingTask& task) {
      crew.tell(1, task);
      crew.tell(0, task);
      return crew.hear<double>(0);
    };
    double alone = 0;
    for (const std::uint32_t outstanding : {1U, 16U, 64U, 256U, 1024U}) {
      const std::uint32_t calls = quick ? 20 : 20'000;
      (void)run({0, std::min(calls, 2 * outstanding), outstanding});  // memory that the first calls need is made
      const Pair both = alternate(
          bench.times(5), [&] { return run({0, calls, outstanding}); }, [&] { return run({1, calls, outstanding}); });
      Record record =
          make_record("remote_outstanding." + std::to_string(bytes) + "B." + std::to_string(outstanding), "k/s", both);
      if (outstanding == 1) alone = record.value;
      record.engine = broker.engine();
      record.peers = {{"times_that_of_1", alone == 0 ? 0 : record.value / alone}};
      bench.record(std::move(record));
    }
    close(stream[0]);
    close(stream[1]);
  }
}

}  // namespace shmb::bench
