// SPDX-License-Identifier: Apache-2.0
// See relay.hpp.
#include "spawn/ranks/relay.hpp"

#include <fcntl.h>
#include <limits.h>
#include <sys/socket.h>
#include <sys/stat.h>
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
  std::string& out = whose.second ? err_.text : out_.text;
  out += "[rank " + std::to_string(whose.first) + "] ";
  out += line;
  out += '\n';
}

void Relay::end_lines() {
  for (auto& [whose, line] : lines_)
    if (!line.empty()) put(whose, line);
  lines_.clear();
}

void Relay::say(const std::string& text) {
  err_.text += text;
  if (!text.empty()) err_.write_some();
}

void Relay::watch(std::vector<pollfd>& polled) const {
  for (const Output* output : {&out_, &err_})
    polled.push_back({output->text.empty() ? -1 : output->descriptor(), POLLOUT, 0});
}

void Relay::write(const std::vector<pollfd>& polled, std::size_t first) {
  if (polled[first].revents != 0) out_.write_some();
  if (polled[first + 1].revents != 0) err_.write_some();
}

std::vector<int> Relay::descriptors() const {
  std::vector<int> own;
  for (const Output* output : {&out_, &err_})
    if (output->has_own()) own.push_back(output->descriptor());
  return own;
}

void Output::look() {
  struct stat found{};
  if (::fstat(shared_, &found) != 0) return;
  const bool terminal = S_ISCHR(found.st_mode) && ::isatty(shared_) == 1;
  kind_ = S_ISSOCK(found.st_mode) ? socket : S_ISFIFO(found.st_mode) || terminal ? blocks : never_blocks;
  if (kind_ != blocks) return;
  // Refused where /proc is not mounted, or where the pipe or terminal belongs to the user before a su(1).
  const std::string path = "/proc/self/fd/" + std::to_string(shared_);
  own_ = Fd::adopt(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

void Output::write_some() {
  if (kind_ == unknown) look();
  ssize_t size = -1;
  if (kind_ == socket) {
    size = ::send(shared_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  } else if (kind_ == blocks && !own_) {
    // The best that is left: poll(2) promises room for PIPE_BUF bytes (pipe(7)), unless another process takes it first.
    pollfd room{shared_, POLLOUT, 0};
    if (::poll(&room, 1, 0) <= 0) return;
    size = ::write(shared_, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
  } else {
    size = ::write(descriptor(), text.data(), text.size());
  }
  if (size > 0) text.erase(0, static_cast<std::size_t>(size));
  else if (size < 0 && errno != EINTR && errno != EAGAIN) text.clear();  // the reader is gone
}

}  // namespace shmb::spawn
