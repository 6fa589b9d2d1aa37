// SPDX-License-Identifier: Apache-2.0
// See relay.hpp.
#include "spawn/relay.hpp"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "spawn/rank_start.hpp"

namespace shmb::spawn {

void Relay::read(Fd& pipe, int rank, bool error) {
  char chunk[16384];
  const ssize_t size = ::read(pipe.get(), chunk, sizeof chunk);
  if (size < 0 && (errno == EINTR || errno == EAGAIN)) return;
  std::string& line = lines_[{rank, error}];
  std::string& out = error ? err_ : out_;
  const auto flush = [&](std::size_t end) {
    out += "[rank " + std::to_string(rank) + "] ";
    out.append(line, 0, end);
    out += '\n';
  };
  if (size <= 0) {
    if (!line.empty()) flush(line.size());
    line.clear();
    pipe.reset();
    return;
  }
  line.append(chunk, static_cast<std::size_t>(size));
  for (std::size_t end; (end = line.find('\n')) != line.npos; line.erase(0, end + 1)) flush(end);
  if (line.size() < kLongestLine) return;
  flush(line.size());
  line.clear();
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

void Relay::finish(std::vector<Rank>& ranks) {
  for (Rank& rank : ranks)
    for (const bool error : {false, true}) {
      Fd& pipe = error ? rank.err : rank.out;
      while (pipe) {
        const std::size_t before = out_.size() + err_.size() + lines_[{rank.local, error}].size();
        read(pipe, rank.local, error);
        if (pipe && out_.size() + err_.size() + lines_[{rank.local, error}].size() == before) break;
      }
    }
  while (!out_.empty()) write_some(1, out_);
  while (!err_.empty()) write_some(2, err_);
}

}  // namespace shmb::spawn
