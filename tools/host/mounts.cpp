// SPDX-License-Identifier: Apache-2.0
// See mounts.hpp, and proc_pid_mountinfo(5) for the format.
#include "tools/host/mounts.hpp"

#include <fcntl.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <charconv>

#include "base/sys_host.hpp"
#include "tools/host/words.hpp"

namespace shmb::host {
namespace {

// Blanks, tabs, new lines and backslashes in paths are \NNN there.
std::string unescaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '\\' && i + 3 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 4, value, 8).ptr == text.data() + i + 4) {
      out += static_cast<char>(value);
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool parse_line(std::string_view line, Mount& out) {
  out.id = number(next_word(line));
  out.parent = number(next_word(line));
  std::string_view device = next_word(line);
  const std::size_t colon = device.find(':');
  if (colon == std::string_view::npos) return false;
  out.device = makedev(number(device.substr(0, colon)), number(device.substr(colon + 1)));
  out.root = unescaped(next_word(line));
  out.point = unescaped(next_word(line));
  const std::string_view options = next_word(line);
  const std::size_t separator = line.find("- ");
  if (separator == std::string_view::npos) return false;
  line.remove_prefix(separator + 2);
  out.type = next_word(line);
  next_word(line);  // the source
  const std::string_view super = next_word(line);
  out.options = std::string(options) + " " + std::string(super);
  const auto is_read_only = [](std::string_view text) { return text == "ro" || text.starts_with("ro,"); };
  out.read_only = is_read_only(options) || is_read_only(super);
  return true;
}

bool is_below(std::string_view path, std::string_view folder) {
  return path.starts_with(folder) && (path.size() == folder.size() || folder == "/" || path[folder.size()] == '/');
}

// A later mount on the same place, or on a folder above it, hides what was there.
bool is_covered(const std::vector<Mount>& all, std::size_t index) {
  for (std::size_t later = index + 1; later < all.size(); ++later) {
    if (!is_below(all[index].point, all[later].point)) continue;
    // A mount below the later one was made inside it, and is not hidden by it.
    std::uint64_t above = all[index].parent;
    bool inside = false;
    for (std::size_t steps = 0; steps < all.size() && !inside; ++steps) {
      if (above == all[later].id) inside = true;
      const auto parent = std::ranges::find(all, above, &Mount::id);
      if (parent == all.end() || parent->parent == above) break;
      above = parent->parent;
    }
    if (!inside) return true;
  }
  return false;
}

}  // namespace

std::vector<Mount> parse_mountinfo(std::string_view text) {
  std::vector<Mount> mounts;
  while (!text.empty()) {
    Mount mount;
    if (parse_line(next_word(text, '\n'), mount)) mounts.push_back(std::move(mount));
  }
  return mounts;
}

std::vector<Mount> memory_mounts(const std::vector<Mount>& all, const std::string& reach_prefix,
                                 std::uint64_t mount_ns) {
  std::vector<Mount> out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    Mount mount = all[i];
    if (mount.type != "tmpfs" && mount.type != "hugetlbfs") continue;
    mount.mount_ns = mount_ns;
    mount.shared_memory = mount.type == "hugetlbfs" || mount.point == "/dev/shm";
    if (!is_covered(all, i)) mount.reach = reach_prefix + mount.point;
    out.push_back(std::move(mount));
  }
  return out;
}

Sys<Fd> open_beneath(const Mount& mount, const std::string& name, int flags) {
  auto top = sys::open_at(AT_FDCWD, mount.reach.c_str(), O_PATH | O_DIRECTORY);
  if (!top) return top;
  return sys::open_beneath(top->get(), name.empty() ? "." : name.c_str(), flags);
}

}  // namespace shmb::host
