// SPDX-License-Identifier: Apache-2.0
// See relay.hpp.
#include "spawn/relay.hpp"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace shmb::spawn {

bool Relay::read(Fd& pipe, int rank, bool error) {
  char chunk[16384];
  const ssize_t size = ::read(pipe.get(), chunk, sizeof chunk);
  if (size < 0 && errno == EINTR) return true;
  if (size < 0 && errno == EAGAIN) return false;
  std::string& line = lines_[{rank, error}];
  if (size <= 0) {
    if (!line.empty()) put({rank, error}, line);
    line.clear();
    pipe.reset();
    return false;
  }
  line.append(chunk, static_cast<std::size_t>(size));
  std::size_t begin = 0;
  for (std::size_t end; (end = line.find('\n', begin)) != line.npos; begin = end + 1)
    put({rank, error}, std::string_view(line).substr(begin, end - begin));
  line.erase(0, begin);
  if (line.size() < kLongestLine) return true;
  put({rank, error}, line);
  line.clear();
  return true;
}

void Relay::put(std::pair<int, bool> whose, std::string_view line) {
  std::string& out = whose.second ? err_ : out_;
  out += "[rank " + std::to_string(whose.first) + "] ";
  out += line;
  out += '\n';
}

void Relay::end_lines() {
  for (auto& [whose, line] : lines_)
    if (!line.empty()) put(whose, line);
  lines_.clear();
}

void Relay::watch(std::vector<pollfd>& polled) const {
  polled.push_back({out_.empty() ? -1 : 1, POLLOUT, 0});
  polled.push_back({err_.empty() ? -1 : 2, POLLOUT, 0});
}

void Relay::write_some(int fd, std::string& text) {
  // A writable pipe has room for PIPE_BUF bytes (pipe(7)).
  const ssize_t size = ::write(fd, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
  if (size > 0) text.erase(0, static_cast<std::size_t>(size));
  else if (size < 0 && errno != EINTR && errno != EAGAIN) text.clear();  // nobody reads it any more
}

void Relay::write(const std::vector<pollfd>& polled, std::size_t first) {
  if (polled[first].revents != 0) write_some(1, out_);
  if (polled[first + 1].revents != 0) write_some(2, err_);
}

}  // namespace shmb::spawn
