// SPDX-License-Identifier: Apache-2.0
// The supervisor's output: what ranks print, line by line after the rank's number, and its own sentences. A slow reader
// makes the ranks wait for room in their pipes, as it would without a relay. It never makes the supervisor wait,
// because the ranks' end depends on that.
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
// share (the parent, the shell). So a pipe or terminal is opened again through /proc, which gives a description of its
// own.
class Output {
 public:
  explicit Output(int fd) : shared_(fd) {}
  std::string text;  // not written yet
  int descriptor() const { return own_ ? own_.get() : shared_; }
  bool has_own() const { return static_cast<bool>(own_); }
  void write_some();

 private:
  void look();
  enum Kind : char { unknown, never_blocks, socket, blocks } kind_ = unknown;
  int shared_;
  Fd own_;
};

// A line is printed when it is complete, so lines of two ranks never mix. ready() is false while more than 1 MiB waits
// for the reader. Then the pipes of the ranks are not read either, and the ranks wait for room in them.
class Relay {
 public:
  bool ready() const { return out_.text.size() < kMostWaiting && err_.text.size() < kMostWaiting; }
  // Reads what is there. At the end of file the rest is a line too, and the pipe is closed. False: no more for now.
  bool read(Fd& pipe, int rank, bool error);
  // Writes to standard error, at once if that takes it. Each rank has a few sentences at most, so they have no limit.
  void say(const std::string& text);
  // Unfinished lines are printed as lines, because no more output comes.
  void end_lines();
  std::size_t waiting() const { return out_.text.size() + err_.text.size(); }
  void watch(std::vector<pollfd>& polled) const;
  void write(const std::vector<pollfd>& polled, std::size_t first);
  // The descriptors that it has opened.
  std::vector<int> descriptors() const;

 private:
  static constexpr std::size_t kMostWaiting = std::size_t{1} << 20;
  static constexpr std::size_t kLongestLine = std::size_t{64} << 10;
  void put(std::pair<int, bool> whose, std::string_view line);
  std::map<std::pair<int, bool>, std::string> lines_;  // unfinished ones
  Output out_{1}, err_{2};
};

}  // namespace shmb::spawn
