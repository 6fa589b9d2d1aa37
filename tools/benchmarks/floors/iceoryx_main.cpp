// SPDX-License-Identifier: Apache-2.0
// iceoryx as a way of ping_pong.hpp, in a program of its own (see roudi.hpp). It needs a running iox-roudi and prints
// "times MEDIAN P50 P99 P99.9", us one way.
// Usage: shmbroker-bench-iceoryx BYTES spinning|asleep STRETCHES IN_EACH TIMED_ONES
#include <errno.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <iceoryx_posh/popo/untyped_publisher.hpp>
#include <iceoryx_posh/popo/untyped_subscriber.hpp>
#include <iceoryx_posh/popo/wait_set.hpp>
#include <iceoryx_posh/runtime/posh_runtime.hpp>
#include <memory>
#include <optional>
#include <string>

#include "tools/benchmarks/floors/ping_pong.hpp"

namespace shmb::bench {

namespace {

class IceoryxEnds {
 public:
  IceoryxEnds(std::size_t bytes, bool asleep) : bytes_(static_cast<std::uint32_t>(bytes)), asleep_(asleep) {}
  std::uint64_t enter(End end, std::uint64_t) {
    const bool client = end == End::client;
    auto name = [&](const char* what) { return iox::capro::IdString_t(iox::cxx::TruncateToCapacity, what); };
    iox::runtime::PoshRuntime::initRuntime(iox::RuntimeName_t(
        iox::cxx::TruncateToCapacity, fmt::format("shmbroker-bench-{}-{}", client ? "client" : "server", getpid())));
    const auto kind = name(fmt::format("{}{}", bytes_, asleep_ ? "a" : "s").c_str());
    out_.emplace(iox::capro::ServiceDescription{name("shmbroker-bench"), kind, name(client ? "there" : "back")});
    in_.emplace(iox::capro::ServiceDescription{name("shmbroker-bench"), kind, name(client ? "back" : "there")});
    if (asleep_ && waiting_.emplace().attachState(*in_, iox::popo::SubscriberState::HAS_DATA).has_error())
      give_up("iceoryx: attachState");
    return 0;
  }
  void send(std::uint32_t number) {
    while (!out_->hasSubscribers()) {
    }
    out_->loan(bytes_)
        .and_then([&](void* data) {
          memcpy(data, &number, sizeof number);
          out_->publish(data);
        })
        .or_else([](auto&) { give_up("iceoryx: loan"); });
  }
  std::uint32_t receive() {
    std::uint32_t number = 0;
    for (bool taken = false; !taken;) {
      if (asleep_) waiting_->wait();
      in_->take().and_then([&](const void* data) {
        memcpy(&number, data, sizeof number);
        in_->release(data);
        taken = true;
      });
    }
    return number;
  }

 private:
  std::uint32_t bytes_;
  bool asleep_;
  std::optional<iox::popo::UntypedPublisher> out_;
  std::optional<iox::popo::UntypedSubscriber> in_;
  std::optional<iox::popo::WaitSet<>> waiting_;
};

}  // namespace
}  // namespace shmb::bench

int main(int argc, char** argv) {
  using namespace shmb::bench;
  if (argc != 6) return 2;
  auto number = [&](int argument) { return static_cast<std::uint32_t>(strtoul(argv[argument], nullptr, 10)); };
  std::vector<NamedWay> ways;
  ways.push_back({"iceoryx", std::make_unique<WayOf<IceoryxEnds>>(number(1), strcmp(argv[2], "asleep") == 0)});
  PingPong pair(std::move(ways));
  const auto times = pair.run(0, number(3), number(4), number(5));
  fmt::print("times {} {} {} {}\n", times.median, times.p50, times.p99, times.p999);
}
