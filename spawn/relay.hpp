// SPDX-License-Identifier: Apache-2.0
// What ranks print, line by line with the rank before it. A reader that is slow makes the ranks wait for room in their
// pipes, as it would without us, and never the supervisor: it writes only as much as poll(2) promises to take.
#pragma once

#include <poll.h>

#include <map>
#include <string>
#include <vector>

#include "base/fd.hpp"

namespace shmb::spawn {

struct Rank;

class Relay {
 public:
  bool ready() const { return out_.size() < kMostWaiting && err_.size() < kMostWaiting; }
  // Takes what is there; at the end of file what is left is a line too, and the pipe is closed.
  void read(Fd& pipe, int rank, bool error);
  void watch(std::vector<pollfd>& polled) const;
  void write(const std::vector<pollfd>& polled, std::size_t first);
  // Everything that is still there, however long its reader takes.
  void finish(std::vector<Rank>& ranks);

 private:
  static constexpr std::size_t kMostWaiting = std::size_t{1} << 20;
  static constexpr std::size_t kLongestLine = std::size_t{64} << 10;
  void write_some(int fd, std::string& text);
  std::map<std::pair<int, bool>, std::string> lines_;  // begun ones
  std::string out_, err_;
};

}  // namespace shmb::spawn
