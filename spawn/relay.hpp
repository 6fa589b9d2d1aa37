// SPDX-License-Identifier: Apache-2.0
// What the supervisor prints: what ranks print, line by line with the rank before it, and its own sentences. A reader
// that is slow makes the ranks wait for room in their pipes, as it would without us, and never the supervisor, on which
// the ranks' end depends.
#pragma once

#include <poll.h>

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"

namespace shmb::spawn {

// Standard output or error, written without ever waiting. O_NONBLOCK belongs to the open file description, which others
// share (the parent, the shell): so a pipe or terminal is opened anew through /proc, which gives one of our own.
class Output {
 public:
  explicit Output(int fd) : shared_(fd) {}
  std::string text;  // still to be written
  int descriptor() const { return own_ ? own_.get() : shared_; }
  bool has_own() const { return static_cast<bool>(own_); }
  void write_some();

 private:
  void look();
  enum Kind : char { unknown, never_blocks, socket, blocks } kind_ = unknown;
  int shared_;
  Fd own_;
};

class Relay {
 public:
  bool ready() const { return out_.text.size() < kMostWaiting && err_.text.size() < kMostWaiting; }
  // Takes what is there; at the end of file what is left is a line too, and the pipe is closed. False: no more for now.
  bool read(Fd& pipe, int rank, bool error);
  // To standard error, now if that takes it. Each rank has a few sentences at most, so these have no limit.
  void say(const std::string& text);
  // What was begun is a line too: nothing comes any more.
  void end_lines();
  std::size_t waiting() const { return out_.text.size() + err_.text.size(); }
  void watch(std::vector<pollfd>& polled) const;
  void write(const std::vector<pollfd>& polled, std::size_t first);
  // What it has opened.
  std::vector<int> descriptors() const;

 private:
  static constexpr std::size_t kMostWaiting = std::size_t{1} << 20;
  static constexpr std::size_t kLongestLine = std::size_t{64} << 10;
  void put(std::pair<int, bool> whose, std::string_view line);
  std::map<std::pair<int, bool>, std::string> lines_;  // begun ones
  Output out_{1}, err_{2};
};

}  // namespace shmb::spawn
