// SPDX-License-Identifier: Apache-2.0
// See leftovers.hpp. No call here asks the file behind a descriptor for anything: a client may serve that file.
#include "daemon/keep/leftovers.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"

namespace shmb::daemon::keep {
namespace {

// The size of the table as the kernel has allocated it: no number above is open.
int table_size() {
  if (auto status = sys::read_file("/proc/self/status")) {
    constexpr std::string_view kField = "\nFDSize:\t";
    if (const std::size_t at = status->find(kField); at != status->npos) {
      int size = 0;
      const char* const digits = status->data() + at + kField.size();
      if (std::from_chars(digits, status->data() + status->size(), size).ec == std::errc{}) return size;
    }
  }
  auto limit = sys::descriptor_limit();
  return static_cast<int>(std::min<std::uint64_t>(limit ? limit->hard : 1024, 1 << 20));
}

bool is_open(int number) { return ::fcntl(number, F_GETFD) >= 0; }

// AT_STATX_DONT_SYNC: a file that a client serves is not asked.
Known file_of(int number) {
  struct statx facts{};
  if (::statx(number, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &facts) != 0) return {number, 0, 0};
  return {number, (std::uint64_t{facts.stx_dev_major} << 32) | facts.stx_dev_minor, facts.stx_ino};
}

// Of a kind whose close waits for no other process: memory, UNIX sockets, and what the kernel makes without a file.
bool closes_at_once(int number) {
  if (::fcntl(number, F_GET_SEALS) >= 0) return true;
  int domain = 0;
  socklen_t size = sizeof domain;
  if (::getsockopt(number, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0) return domain == AF_UNIX;
  char target[32];
  const std::string link = "/proc/self/fd/" + std::to_string(number);
  const ssize_t length = ::readlink(link.c_str(), target, sizeof target);
  return length > 0 && std::string_view(target, static_cast<std::size_t>(length)).starts_with("anon_inode:");
}

// A copy of a listening socket of the keepers. Such a socket must not be shut down.
bool listens(int number) {
  int value = 0;
  socklen_t size = sizeof value;
  return ::getsockopt(number, SOL_SOCKET, SO_ACCEPTCONN, &value, &size) == 0 && value != 0;
}

void hand_over(Closer& closer, std::vector<Fd> fds) {
  if (!fds.empty()) (void)closer.close(fds);  // where no thread can be started they are closed here
  closer.go();
}

}  // namespace

std::vector<Known> open_now() {
  std::vector<Known> known;
  for (int number = 0, size = table_size(); number < size; ++number)
    if (is_open(number)) known.push_back(file_of(number));
  return known;
}

Leftovers::Leftovers(const std::vector<Known>& known) {
  auto next = known.begin();
  for (int number = 0, size = table_size(); number < size; ++number) {
    const bool ours = next != known.end() && next->number == number;
    const bool open = is_open(number);
    const bool same = ours && open && file_of(number) == *next;
    if (ours) ++next;
    if (open && !same) numbers_.push_back(number);
    if (ours && !same) lost_.push_back(number);
  }
}

bool Leftovers::lost(int number) const { return std::ranges::find(lost_, number) != lost_.end(); }

void Leftovers::spare(const std::vector<int>& numbers) {
  std::erase_if(numbers_, [&](int number) { return std::ranges::binary_search(numbers, number); });
}

void Leftovers::close() {
  // Not a doorbell: its other copies go on, with the clients or under a number that is booked.
  for (int number : numbers_)
    if (!listens(number) && !sys::is_pair_end(number)) (void)::shutdown(number, SHUT_RDWR);
  std::vector<Fd> first, last;
  for (int number : numbers_) (closes_at_once(number) ? first : last).push_back(Fd::adopt(number));
  numbers_.clear();
  hand_over(harmless_, std::move(first));
  hand_over(of_clients_, std::move(last));
}

}  // namespace shmb::daemon::keep
