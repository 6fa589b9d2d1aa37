// SPDX-License-Identifier: Apache-2.0
// How several makers agree: each makes its own place, then looks again, and removes its own if it sees another. Of two,
// the later one always sees the earlier one, so at most one stays. If both see each other, both begin again. A place
// that stays gets a file. Its maker can then no longer remove it, and a look takes no other place. A place without a
// file for a while belongs to a maker that died or stopped: the next process that looks takes it over.
#include "base/private_place.hpp"

#include <fcntl.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <vector>

#include "base/sys_file.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"

namespace shmb {
namespace {

constexpr std::size_t kRandomBytes = 16;
constexpr int kMakings = 200;                      // attempts of makers that meet repeatedly
constexpr std::int64_t kShortestRest = 1'000'000;  // between two attempts
constexpr int kLooks = 100;                        // at places that their makers may be about to remove
constexpr const char* kStays = "/start.lock";      // the file, which those that start a broker lock

bool is_random_part(std::string_view text) {
  if (text.size() != 2 * kRandomBytes) return false;
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_ours(const std::string& path, std::uint32_t uid) {
  auto facts = sys::path_facts(path.c_str());
  return facts && facts->is_directory && facts->uid == uid && (facts->mode & 077) == 0;
}

// In the order of their names.
std::vector<std::string> all_places(const std::string& temporary, std::uint32_t uid) {
  const std::string prefix = "shmbroker-" + std::to_string(uid) + "-";
  std::vector<std::string> found;
  auto names = sys::names_in(temporary.c_str(), prefix);
  if (!names) return found;
  for (const std::string& name : *names)
    if (is_random_part(std::string_view(name).substr(prefix.size())) && is_ours(temporary + "/" + name, uid))
      found.push_back(temporary + "/" + name);
  return found;
}

Result<std::string> draw_place(const std::string& temporary, std::uint32_t uid) {
  std::array<std::byte, kRandomBytes> bytes;
  if (auto drawn = sys::random_bytes(bytes); !drawn) return system_failure(drawn.error(), "drawing a random name");
  std::string path = first_place(temporary, uid) + "-";
  for (const std::byte byte : bytes) {
    path += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    path += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15];
  }
  return path;
}

Sys<void> keep(const std::string& place) {
  SHMB_TRY_VOID(sys::open((place + kStays).c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600));
  return {};
}

}  // namespace

std::string first_place(const std::string& temporary, std::uint32_t uid) {
  return temporary + "/shmbroker-" + std::to_string(uid);
}

std::optional<std::string> second_place(const std::string& temporary, std::uint32_t uid) {
  for (int look = 0;; ++look) {
    const std::vector<std::string> places = all_places(temporary, uid);
    for (const std::string& place : places)
      if (sys::path_facts((place + kStays).c_str())) return place;
    if (places.empty()) return std::nullopt;
    if (look >= kLooks && keep(places.front())) return places.front();
    sys::rest(kShortestRest);
  }
}

Result<std::string> make_second_place(const std::string& temporary, std::uint32_t uid) {
  for (int attempt = 0; attempt < kMakings; ++attempt) {
    if (auto there = second_place(temporary, uid)) return *there;
    auto path = draw_place(temporary, uid);
    if (!path) return path;
    if (auto made = sys::make_directory(path->c_str(), 0700); !made)
      return system_failure(made.error(), "making " + *path);
    const std::vector<std::string> now = all_places(temporary, uid);
    if (now.size() == 1 && now.front() == *path) {
      if (auto kept = keep(*path); !kept) return system_failure(kept.error(), "making a file in " + *path);
      return path;
    }
    (void)sys::remove_directory(path->c_str());  // fails where another process has taken it over
    sys::rest(kShortestRest * (1 + static_cast<std::int64_t>(path->back()) % 16));
  }
  return error(Status::busy, "no private place for a broker could be agreed on in " + temporary + ": try again");
}

}  // namespace shmb
