// SPDX-License-Identifier: Apache-2.0
// See pages.hpp.
#include "tools/host/pages.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/sys_file.hpp"
#include "base/sys_host.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "tools/host/words.hpp"

namespace shmb::host {
namespace {

constexpr std::size_t kSamples = 16;    // pages whose cgroup is read; objects of several cgroups are rare
constexpr std::size_t kExtents = 4096;  // of one file that are read
constexpr std::uint64_t kPresent = 1ULL << 63, kFrame = (1ULL << 55) - 1;  // of /proc/PID/pagemap
constexpr std::size_t kMincoreBytes = std::size_t{1} << 30;                // of one call

std::uint64_t page_size() {
  static const auto size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

struct Unmap {
  void* memory = MAP_FAILED;
  std::size_t size = 0;
  ~Unmap() {
    if (memory != MAP_FAILED) ::munmap(memory, size);
  }
};

// Data of the file, as (offset, size); a hole has no memory behind it.
std::vector<std::pair<std::uint64_t, std::uint64_t>> extents_of(int fd) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> out;
  off_t at = 0;
  while (out.size() < kExtents) {
    const off_t data = ::lseek(fd, at, SEEK_DATA);
    if (data < 0) break;
    const off_t end = ::lseek(fd, data, SEEK_HOLE);
    if (end <= data) break;
    out.emplace_back(static_cast<std::uint64_t>(data), static_cast<std::uint64_t>(end - data));
    at = end;
  }
  return out;
}

// Offsets of pages with data, evenly spread.
std::vector<std::uint64_t> samples_of(int fd) {
  const auto extents = extents_of(fd);
  std::uint64_t pages = 0;
  for (const auto& [offset, size] : extents) pages += (size + page_size() - 1) / page_size();
  const std::uint64_t step = std::max<std::uint64_t>(1, pages / kSamples);
  std::vector<std::uint64_t> out;
  std::uint64_t page = 0, next = 0;
  for (const auto& [offset, size] : extents) {
    const std::uint64_t count = (size + page_size() - 1) / page_size();
    for (; next < page + count && out.size() < kSamples; next += step)
      out.push_back(offset / page_size() * page_size() + (next - page) * page_size());
    page += count;
  }
  return out;
}

std::optional<std::uint64_t> read_word(int fd, std::uint64_t index) {
  std::uint64_t word = 0;
  if (::pread(fd, &word, sizeof word, static_cast<off_t>(index * sizeof word)) != sizeof word) return std::nullopt;
  return word;
}

// Bytes in memory. nullopt: the kernel tells them only to the owner and to root (mincore(2) then answers yes for all).
std::optional<std::uint64_t> in_memory(int fd, const Object& object) {
  if (::geteuid() != 0 && ::geteuid() != object.uid) return std::nullopt;
  std::uint64_t pages = 0;
  std::vector<unsigned char> present;
  for (const auto& [offset, size] : extents_of(fd))
    for (std::uint64_t done = 0; done < size; done += kMincoreBytes) {
      const std::size_t part = std::min<std::uint64_t>(size - done, kMincoreBytes);
      const std::size_t length = (part + page_size() - 1) / page_size() * page_size();
      const auto start = static_cast<off_t>((offset + done) / page_size() * page_size());
      const Unmap mapped{::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd, start), length};
      present.assign(length / page_size(), 0);
      if (mapped.memory == MAP_FAILED || ::mincore(mapped.memory, length, present.data()) != 0) return std::nullopt;
      pages +=
          static_cast<std::uint64_t>(std::ranges::count_if(present, [](unsigned char it) { return (it & 1) != 0; }));
    }
  return pages * page_size();
}

std::uint64_t field_of(const std::string& meminfo, const char* key) {
  const std::size_t at = meminfo.find(key);
  return at == std::string::npos ? 0
                                 : number(std::string_view(meminfo).substr(at + std::char_traits<char>::length(key)));
}

}  // namespace

PageBooks::PageBooks(const Inventory& inventory, std::string root)
    : inventory_(inventory),
      root_(std::move(root)),
      charges_(sys::open_at(AT_FDCWD, (root_ + "/proc/kpagecgroup").c_str(), O_RDONLY)),
      frames_(sys::open_at(AT_FDCWD, "/proc/self/pagemap", O_RDONLY)) {
  if (auto text = sys::read_file((root_ + "/proc/meminfo").c_str()))
    swaps_ = field_of(*text, "SwapTotal:") != field_of(*text, "SwapFree:");
}

void PageBooks::look(Object& object, bool charged) {
  find_resident(object);
  if (!charged) return;
  Charge charge = charge_of(object);
  object.cgroups = std::move(charge.cgroups);
  object.why_no_cgroup = std::move(charge.reason);
}

void PageBooks::find_resident(Object& object) const {
  if (object.resident_known) return;
  if (!object.touched_known) return;
  // st_blocks counts what is in memory and what is in swap.
  if (!swaps_ || object.touched == 0 || object.kind == Kind::hugetlb) {
    object.resident = object.touched;
    object.resident_known = true;
    return;
  }
  auto file = open(object);
  if (!file) return;
  if (const auto bytes = in_memory(file->get(), object)) {
    object.resident = *bytes;
    object.resident_known = true;
  }
}

Sys<Fd> PageBooks::open(const Object& object) const {
  Sys<Fd> file = sys_error(ENOENT);
  if (!object.names.empty())
    file = open_beneath(inventory_.mounts[object.mount].mount, object.name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
  else if (!object.through.empty()) file = sys::open_at(AT_FDCWD, object.through.c_str(), O_RDONLY | O_NONBLOCK);
  if (!file) return file;
  auto facts = sys::file_stat(file->get());
  if (!facts || facts->device != object.key.space || facts->inode != object.key.id) return sys_error(ESTALE);
  return file;
}

PageBooks::Charge PageBooks::charge_of(const Object& object) {
  if (object.kind == Kind::sysv) return {{}, "to look at a SysV segment would attach to it"};
  if (object.kind == Kind::hugetlb) return {{}, "huge pages are counted by the hugetlb controller"};
  if (!charges_) return {{}, "/proc/kpagecgroup cannot be read: " + errno_text(charges_.error().value)};
  if (!frames_) return {{}, "/proc/self/pagemap cannot be read: " + errno_text(frames_.error().value)};
  if (object.touched_known && object.touched == 0) return {{}, "nothing of it is touched"};
  auto file = open(object);
  if (!file && file.error().value == ESTALE) return {{}, "it ended during the look"};
  if (!file) return {{}, "it cannot be opened: " + errno_text(file.error().value)};
  std::map<std::uint64_t, std::size_t> found;
  for (const std::uint64_t offset : samples_of(file->get())) {
    const Unmap page{::mmap(nullptr, page_size(), PROT_READ, MAP_SHARED, file->get(), static_cast<off_t>(offset)),
                     page_size()};
    unsigned char present = 0;
    if (page.memory == MAP_FAILED || ::mincore(page.memory, page_size(), &present) != 0 || (present & 1) == 0) continue;
    // Not by a memory access: if the file is cut meanwhile, that would be SIGBUS.
    if (::madvise(page.memory, page_size(), MADV_POPULATE_READ) != 0) continue;
    const auto entry = read_word(frames_->get(), reinterpret_cast<std::uintptr_t>(page.memory) / page_size());
    if (!entry || (*entry & kPresent) == 0) continue;
    if ((*entry & kFrame) == 0) return {{}, "the kernel shows page frames only with CAP_SYS_ADMIN"};
    if (const auto cgroup = read_word(charges_->get(), *entry & kFrame)) ++found[*cgroup];
  }
  if (found.empty()) return {{}, "none of it is in memory"};
  std::vector<std::pair<std::size_t, std::uint64_t>> ordered;
  for (const auto& [inode, count] : found) ordered.emplace_back(count, inode);
  std::ranges::stable_sort(ordered, std::greater(), &std::pair<std::size_t, std::uint64_t>::first);
  Charge out;
  for (const auto& [count, inode] : ordered) out.cgroups.push_back(cgroup_name(inode));
  return out;
}

std::string PageBooks::cgroup_name(std::uint64_t inode) {
  if (inode == 0) return "none";
  if (!names_read_) {
    names_read_ = true;
    std::string top;
    if (auto text = sys::read_file((root_ + "/proc/self/mountinfo").c_str(), 16 << 20))
      for (const Mount& mount : parse_mountinfo(*text)) {
        const bool first = mount.type == "cgroup" && (mount.options + ",").find(",memory,") != std::string::npos;
        const bool second = mount.type == "cgroup2" &&
                            sys::path_facts((root_ + mount.point + "/memory.stat").c_str(), true).has_value();
        if (first || second) top = root_ + mount.point;
      }
    std::error_code failed;
    const auto note = [&](const std::string& path) {
      if (auto facts = sys::file_stat_at(AT_FDCWD, path.c_str(), false))
        names_[facts->inode] = path.size() == top.size() ? "/" : path.substr(top.size());
    };
    if (!top.empty()) {
      note(top);
      for (auto it = std::filesystem::recursive_directory_iterator(
               top, std::filesystem::directory_options::skip_permission_denied, failed);
           !failed && it != std::filesystem::recursive_directory_iterator(); it.increment(failed))
        if (it->is_directory(failed)) note(it->path());
    }
  }
  const auto found = names_.find(inode);
  return found != names_.end() ? found->second
                               : "a cgroup that is gone or not mounted here (inode " + std::to_string(inode) + ")";
}

}  // namespace shmb::host
