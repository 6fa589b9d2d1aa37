// SPDX-License-Identifier: Apache-2.0
// Messages of 56 bytes as fast as they go, from some writers on the first core to some readers on the last: how many
// are sent per second, from the common start until the last reader has the last one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "tools/benchmarks/kit/crew.hpp"
#include "tools/benchmarks/kit/figure.hpp"

namespace shmb::bench {

inline constexpr std::size_t kStreamBytes = 56;

// One way to carry them, as seen by one process of the stream.
class StreamEnd {
 public:
  virtual ~StreamEnd() = default;
  virtual void send(std::uint64_t count) = 0;
  // Calls `taken` after each message until it returns true, or after some milliseconds without one.
  virtual void receive(const std::function<bool()>& taken) = 0;
};

class Stream {
 public:
  // Makes the end of one process, in that process. Member 0 is the first writer and enters before the others: it gets
  // 0 and may change the number, which is given to the others.
  using Enter = std::function<std::unique_ptr<StreamEnd>(bool writer, std::uint64_t& token)>;
  Stream(unsigned writers, unsigned readers, bool each_reader_gets_all, const Enter& enter);
  Stream(Stream&&) = delete;
  ~Stream();
  double per_second(std::uint64_t count);  // messages in thousands, sent by all writers together

 private:
  struct Shared;
  void serve(bool writer, const Enter& enter, int socket);
  unsigned writers_;
  bool counts_alone_;  // each reader
  Shared* shared_;
  Crew crew_;
};

}  // namespace shmb::bench
