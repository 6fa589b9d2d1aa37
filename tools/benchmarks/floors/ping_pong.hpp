// SPDX-License-Identifier: Apache-2.0
// A number sent to another process and back, over any way there is: two processes on two cores, at high priority where
// that is allowed. One way is half of a round trip. The value is the median over stretches, which no clock disturbs;
// the percentiles come from round trips that are timed one by one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/benchmarks/kit/crew.hpp"
#include "tools/benchmarks/kit/figure.hpp"

namespace shmb::bench {

enum class End : std::uint32_t { client, server };

class Way {
 public:
  virtual ~Way() = default;
  // In the process that is this end. The client enters first; what it returns is given to the server.
  virtual std::uint64_t enter(End end, std::uint64_t from_client) = 0;
  virtual void answer(std::uint32_t count) = 0;
  virtual void ask(std::uint32_t count) = 0;
  virtual void ask_each(std::uint32_t count, Samples& each) = 0;  // us of each round trip
};

[[noreturn]] void wrong_answer();

// Ends: enter(end, from_client), send(number), receive() -> number. The loops are compiled for each.
template <class Ends>
class WayOf final : public Way {
 public:
  template <class... Arguments>
  explicit WayOf(Arguments&&... arguments) : ends_(std::forward<Arguments>(arguments)...) {}
  std::uint64_t enter(End end, std::uint64_t from_client) override { return ends_.enter(end, from_client); }
  void answer(std::uint32_t count) override {
    for (std::uint32_t i = 0; i < count; ++i) ends_.send(ends_.receive());
  }
  void ask(std::uint32_t count) override {
    for (std::uint32_t i = 0; i < count; ++i) round_trip();
  }
  void ask_each(std::uint32_t count, Samples& each) override {
    for (std::uint32_t i = 0; i < count; ++i) each.add(timed([&] { round_trip(); }));
  }

 private:
  void round_trip() {
    ends_.send(++number_);
    if (ends_.receive() != number_) wrong_answer();
  }
  Ends ends_;
  std::uint32_t number_ = 0;
};

struct NamedWay {
  std::string name;
  std::unique_ptr<Way> way;
};

class PingPong {
 public:
  explicit PingPong(std::vector<NamedWay> ways, Core client = Core::client, Core server = Core::server);
  std::size_t size() const { return ways_.size(); }
  const std::string& name(std::size_t way) const { return ways_[way].name; }

  struct Times {  // us, one way
    double median, p50, p99, p999, p9999;
  };
  Times run(std::size_t way, std::uint32_t stretches, std::uint32_t in_each, std::uint32_t timed_ones);

 private:
  struct Command {
    std::uint32_t enter, way;
    std::uint64_t from_client;
    std::uint32_t stretches, in_each, timed_ones;
  };
  void client(int socket);
  void server(int socket);
  std::vector<NamedWay> ways_;
  Crew crew_;
};

}  // namespace shmb::bench
