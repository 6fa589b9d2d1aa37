// SPDX-License-Identifier: Apache-2.0
// What ranks print, line by line with the rank before it. A reader that is slow makes the ranks wait for room in their
// pipes, as it would without us, and never the supervisor: it writes only as much as poll(2) promises to take.
#pragma once

#include <poll.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace shmb::spawn {

class Relay {
 public:
  bool ready() const { return out_.size() < kMostWaiting && err_.size() < kMostWaiting; }
  // Takes what is there; at the end of file what is left is a line too, and the pipe is closed. False: no more for now.
  bool read(Fd& pipe, int rank, bool error);
  // What was begun is a line too: nothing comes any more.
  void end_lines();
  std::size_t waiting() const { return out_.size() + err_.size(); }
  void watch(std::vector<pollfd>& polled) const;
  void write(const std::vector<pollfd>& polled, std::size_t first);

 private:
  static constexpr std::size_t kMostWaiting = std::size_t{1} << 20;
  static constexpr std::size_t kLongestLine = std::size_t{64} << 10;
  void write_some(int fd, std::string& text);
  void put(std::pair<int, bool> whose, std::string_view line);
  std::map<std::pair<int, bool>, std::string> lines_;  // begun ones
  std::string out_, err_;
};

}  // namespace shmb::spawn
