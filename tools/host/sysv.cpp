// SPDX-License-Identifier: Apache-2.0
// See sysv.hpp.
#include "tools/host/sysv.hpp"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <thread>

#include "base/sys_host.hpp"
#include "tools/host/words.hpp"

namespace shmb::host {
namespace {

std::vector<std::string_view> columns_of(std::string_view line) {
  std::vector<std::string_view> out;
  while (!(line = without_blanks(line)).empty()) out.push_back(next_word(line));
  return out;
}

}  // namespace

std::vector<Segment> parse_sysv(std::string_view text) {
  std::vector<Segment> out;
  text.remove_prefix(std::min(text.find('\n') + 1, text.size()));  // the titles
  while (!text.empty()) {
    const auto word = columns_of(next_word(text, '\n'));
    if (word.size() < 16) continue;
    Segment segment;
    segment.key = number<std::int64_t>(word[0]);
    segment.shmid = number<int>(word[1]);
    segment.mode = number<std::uint32_t>(word[2], 8);
    segment.size = number(word[3]);
    segment.creator = number<pid_t>(word[4]);
    segment.last = number<pid_t>(word[5]);
    segment.attached = number(word[6]);
    segment.uid = number<std::uint32_t>(word[7]);
    segment.changed =
        std::max({number<std::int64_t>(word[11]), number<std::int64_t>(word[12]), number<std::int64_t>(word[13])});
    segment.resident = number(word[14]);
    segment.swapped = number(word[15]);
    out.push_back(segment);
  }
  return out;
}

// setns(2) for IPC concerns one thread, and that thread's end is the way back.
Sys<void> in_ipc_namespace(const std::string& path, const std::function<void()>& work) {
  SHMB_TRY(target, sys::open_at(AT_FDCWD, path.c_str(), O_RDONLY));
  Sys<void> entered;
  std::thread inside([&] {
    entered = sys::enter_namespace(target.get(), CLONE_NEWIPC);
    if (entered) work();
  });
  inside.join();
  return entered;
}

}  // namespace shmb::host
