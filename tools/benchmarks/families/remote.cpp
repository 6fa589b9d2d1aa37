// SPDX-License-Identifier: Apache-2.0
// Calls between two workers: as many bytes there and back, a reference made, a value fetched. The floor is a stream
// socket between the same two processes that carries the same bytes there and back: no names, no deadlines, no books.
// A worker looks for messages for 20 us before it sleeps, so each figure is taken twice: call upon call, against a
// socket whose both ends look without a pause; and with a pause before each call, against one whose reader sleeps as
// well.
#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <vector>

#include "spawn/face/shmbroker_remote.h"
#include "tools/benchmarks/kit/broker_process.hpp"
#include "tools/benchmarks/kit/crew.hpp"
#include "tools/benchmarks/kit/library.hpp"

namespace shmb::bench {
namespace {

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;

constexpr useconds_t kPause = 300;  // far longer than anybody looks

struct Command {
  enum What : std::uint32_t { rpc_sync, remote, to_here, echo } what;
  std::uint32_t count;
  std::uint32_t asleep;  // a pause before each; the socket blocks
};
struct Times {
  double p50, p99;
};

// The function of worker 1: returns its argument.
void give_back(void*, shmb_request* request) {
  shmb_content* const content = shmb_request_content(request);
  shmb_payload payload{};
  payload.data = shmb_content_data(content);
  payload.length = shmb_content_length(content);
  (void)shmb_request_answer(request, &payload, nullptr);
}

shmb_remote* join(const std::string& socket, int rank) {
  shmb_remote_options options{};
  options.size = sizeof options;
  options.name = rank == 0 ? "client" : "server";
  options.address = "localhost:29501";
  options.rank = rank;
  options.world_size = 2;
  options.socket = socket.c_str();
  options.request = give_back;
  shmb_remote* world = nullptr;
  shmb_error error;
  must_succeed(shmb_remote_init(&options, &world, &error), error);
  return world;
}

// Both for sockets that block and for such that are asked again and again.
bool would_block(ssize_t got) { return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK); }
void write_whole(int socket, const std::byte* from, std::size_t bytes, bool blocks) {
  for (std::size_t at = 0; at < bytes;) {
    const ssize_t put = send(socket, from + at, std::min(bytes - at, 4 * kMiB), blocks ? 0 : MSG_DONTWAIT);
    if (would_block(put)) continue;
    at += static_cast<std::size_t>(must(static_cast<int>(put), "send"));
  }
}
void read_whole(int socket, std::byte* to, std::size_t bytes, bool blocks) {
  for (std::size_t at = 0; at < bytes;) {
    const ssize_t got = recv(socket, to + at, std::min(bytes - at, 4 * kMiB), blocks ? 0 : MSG_DONTWAIT);
    if (would_block(got)) continue;
    if (must(static_cast<int>(got), "recv") == 0) give_up("the other end of the socket is gone");
    at += static_cast<std::size_t>(got);
  }
}

class Client {
 public:
  Client(const std::string& socket, int stream, std::size_t bytes)
      : world_(join(socket, 0)), stream_(stream), bytes_(bytes, std::byte{7}), back_(bytes) {
    reference_ = create();
    finish(reference_);
  }
  Times run(const Command& command) {
    (void)one(command);  // until the other end has come from what it did before
    Samples each;
    for (std::uint32_t i = 0; i < command.count; ++i) {
      if (command.asleep != 0) usleep(kPause);
      each.add(one(command));
    }
    return {each.percentile(0.5), each.percentile(0.99)};
  }

 private:
  double one(const Command& command) {
    switch (command.what) {
      case Command::rpc_sync:
        return timed([&] { call(); });
      case Command::to_here:
        return timed([&] { fetch(); });
      case Command::echo:
        return timed([&] {
          write_whole(stream_, bytes_.data(), bytes_.size(), command.asleep != 0);
          read_whole(stream_, back_.data(), back_.size(), command.asleep != 0);
        });
      default: {
        shmb_reference* reference = nullptr;
        const double took = timed([&] { reference = create(); });
        finish(reference);
        shmb_reference_free(reference);
        return took;
      }
    }
  }
  shmb_payload payload() const {
    shmb_payload out{};
    out.data = bytes_.data();
    out.length = bytes_.size();
    return out;
  }
  shmb_reference* create() {
    const shmb_payload what = payload();
    shmb_reference* reference = nullptr;
    shmb_error error;
    must_succeed(shmb_remote_create(world_, 1, "give_back", &what, 0, 0, &reference, &error), error);
    return reference;
  }
  void finish(shmb_reference* reference) {
    shmb_future* future = nullptr;
    shmb_error error;
    must_succeed(shmb_reference_created(reference, &future, &error), error);
    must_succeed(shmb_future_wait(future, 0, nullptr, &error), error);
    shmb_future_free(future);
  }
  void take(shmb_future* future) {
    shmb_content* content = nullptr;
    shmb_error error;
    must_succeed(shmb_future_wait(future, 0, &content, &error), error);
    const auto* data = static_cast<const std::byte*>(shmb_content_data(content));
    if (shmb_content_length(content) != bytes_.size() || data[bytes_.size() - 1] != std::byte{7})
      give_up("the bytes that came back are not those that were sent");
    shmb_future_free(future);
  }
  void call() {
    const shmb_payload what = payload();
    shmb_future* future = nullptr;
    shmb_error error;
    must_succeed(shmb_remote_call(world_, 1, "give_back", &what, 0, 0, &future, &error), error);
    take(future);
  }
  void fetch() {
    shmb_future* future = nullptr;
    shmb_error error;
    must_succeed(shmb_reference_fetch(reference_, 0, &future, &error), error);
    take(future);
  }

  shmb_remote* world_;
  int stream_;
  std::vector<std::byte> bytes_, back_;
  shmb_reference* reference_ = nullptr;
};

// Both ends of both ways are in these two processes: the stream is served by a thread of its own turn.
void serve(const std::string& socket, int stream, std::size_t bytes, int channel) {
  shmb_remote* const world = join(socket, 1);
  std::vector<std::byte> back(bytes);
  for (;;) {
    const auto command = hear<Command>(channel);
    if (command.what == Command::echo) {
      for (std::uint32_t i = 0; i <= command.count; ++i) {  // and the first, which is not counted
        read_whole(stream, back.data(), back.size(), command.asleep != 0);
        write_whole(stream, back.data(), back.size(), command.asleep != 0);
      }
    } else {
      int over = 0;
      const auto done = [](void* at) {
        auto* turn = static_cast<std::pair<int, int*>*>(at);
        char byte;
        if (recv(turn->first, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0) *turn->second = 1;
        return *turn->second;
      };
      std::pair<int, int*> turn{channel, &over};
      shmb_error error;
      // Served in short turns: the next command is seen between them.
      while (done(&turn) == 0) must_succeed(shmb_remote_serve(world, 50'000'000, &error), error);
    }
  }
}

// The times of torch.distributed.rpc for the same, where it is installed: "rpc_sync.4096" and the like.
std::map<std::string, double> torch_times(bool quick, const std::vector<std::size_t>& sizes) {
  // Debian's package belongs to Debian's python, which need not be the first one in PATH.
  std::string command =
      "for python in python3 /usr/bin/python3; do $python -c 'import torch' && exec $python " SHMB_BENCH_TORCH_RPC " " +
      std::string(quick ? "3" : "1000");
  for (const std::size_t bytes : sizes) command += " " + std::to_string(bytes);
  command = "{ " + command + "; done; exit 77; }";
  std::map<std::string, double> out;
  FILE* const pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) give_up("popen");
  char name[32];
  std::size_t bytes = 0;
  double median = 0, p99 = 0;
  while (std::fscanf(pipe, "%31s %zu %lf %lf", name, &bytes, &median, &p99) == 4) {
    out[name + ("." + std::to_string(bytes))] = median;
    out[name + ("." + std::to_string(bytes)) + ".p99"] = p99;
  }
  if (const int status = pclose(pipe); status != 0)
    fmt::print("    torch.distributed.rpc left out: {}\n",
               WEXITSTATUS(status) == 77 ? "python3-torch is not installed" : "its program failed");
  return out;
}

std::string size_name(std::size_t bytes) {
  return bytes >= kMiB ? std::to_string(bytes / kMiB) + "MiB" : std::to_string(bytes / kKiB) + "KiB";
}

}  // namespace

void run_remote(Bench& bench) {
  std::vector<std::size_t> all = {4 * kKiB, kMiB};
  if (!bench.settings().quick) all.push_back(64 * kMiB);
  const auto torch = torch_times(bench.settings().quick, all);
  for (const std::size_t bytes : all) {
    auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine);
    int stream[2];
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, stream), "socketpair");
    Crew crew;
    crew.add(Core::client, [&](int channel) {
      Client client(broker.socket(), stream[0], bytes);
      for (;;) tell(channel, client.run(hear<Command>(channel)));
    });
    crew.add(Core::server, [&](int channel) { serve(broker.socket(), stream[1], bytes, channel); });
    crew.tell(1, Command{Command::rpc_sync, 0, 0});  // it serves the client's beginning
    const std::uint32_t count = bench.settings().quick ? 3 : bytes <= 4 * kKiB ? 2000 : bytes <= kMiB ? 300 : 15;
    const auto run = [&](Command::What what, bool asleep) {
      const Command command{what, count, asleep};
      crew.tell(1, command);
      crew.tell(0, command);
      return crew.hear<Times>(0);
    };
    struct Figure {
      const char* name;
      Command::What what;
    };
    for (const Figure& figure : {Figure{"rpc_sync", Command::rpc_sync}, Figure{"remote", Command::remote},
                                 Figure{"to_here", Command::to_here}})
      for (const bool asleep : {false, true}) {
        Samples p99, floor_p99;
        run(figure.what, asleep);
        Pair both = alternate(
            bench.times(7),
            [&] {
              const Times times = run(figure.what, asleep);
              p99.add(times.p99);
              return times.p50;
            },
            [&] {
              const Times times = run(Command::echo, asleep);
              floor_p99.add(times.p99);
              return times.p50;
            });
        const std::string how = asleep ? ".asleep" : ".spinning";
        Record record = make_record(std::string("remote.") + figure.name + "." + size_name(bytes) + how, "us", both);
        record.engine = broker.engine();
        record.peers = {{"p99", p99.median()}, {"floor_p99", floor_p99.median()}};
        const std::string theirs = std::string(figure.name) + "." + std::to_string(bytes);
        if (const auto found = torch.find(theirs); found != torch.end() && !asleep) {
          record.peers["torch"] = found->second;
          record.peers["torch_p99"] = torch.at(theirs + ".p99");
        }
        bench.record(std::move(record));
      }
    close(stream[0]);
    close(stream[1]);
  }
}

}  // namespace shmb::bench
