// SPDX-License-Identifier: Apache-2.0
// With the test seam's instruction gpu=DIR the fake driver's files count as the driver's. Its memfds are exports, and
// the files in DIR are nodes and information. The shipped build accepts only the driver's own.
#include "base/sys_gpu.hpp"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cctype>
#include <charconv>

#include "base/compat.hpp"
#include "base/result.hpp"
#include "base/sys_call.hpp"
#include "base/sys_process.hpp"

namespace shmb::sys {

using fault::Call;

namespace {

constexpr unsigned kMajor = 195, kModesetMinor = 254, kControlMinor = 255;  // of Documentation/admin-guide/devices.txt
constexpr std::uint32_t kMostMinors = 64;                                   // looked for without /proc

#ifdef SHMB_TEST_SEAM
GpuFile fake_file(int fd) {
  const std::string root = fault::gpu_root();
  if (root.empty()) return {};
  char text[4096];
  const ssize_t size = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), text, sizeof text);
  const std::string_view link(text, size > 0 ? static_cast<std::size_t>(size) : 0);
  if (link.starts_with("/memfd:fakecuda:")) return {GpuKind::control};
  const std::string node = root + "/fake-nvidia";
  GpuFile found{GpuKind::node};
  if (!link.starts_with(node)) return {};
  std::from_chars(link.data() + node.size(), link.data() + link.size(), found.minor);
  return found;
}
std::string driver_folder() {
  const std::string root = fault::gpu_root();
  return root.empty() ? "/proc/driver/nvidia" : root;
}
#else
GpuFile fake_file(int) { return {}; }
std::string driver_folder() { return "/proc/driver/nvidia"; }
#endif

bool exists(const std::string& path) {
  struct statx facts{};
  return call(Call::fstat, [&] { return ::statx(AT_FDCWD, path.c_str(), 0, STATX_TYPE, &facts); }).has_value();
}

// The folder names below /proc/driver/nvidia/gpus: lower case, a domain of four digits. Empty: no PCI address.
std::string folder_of(std::string_view pci) {
  while (pci.size() > 12 && pci.starts_with('0')) pci.remove_prefix(1);  // NVML writes the domain with eight digits
  if (pci.size() != 12) return {};
  std::string out;
  for (std::size_t i = 0; i < pci.size(); ++i) {
    const auto c = static_cast<unsigned char>(pci[i]);
    const bool separator = i == 4 || i == 7 || i == 10;
    if (separator ? c != (i == 10 ? '.' : ':') : std::isxdigit(c) == 0) return {};
    out += static_cast<char>(std::tolower(c));
  }
  return out;
}

// The text after "name:" on a line of its own.
std::string_view line_of(std::string_view text, std::string_view name) {
  std::size_t at = text.find(name);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + name.size());
  text = text.substr(0, text.find('\n'));
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  return text;
}

// "GPU-0123abcd-...": 32 hexadecimal digits behind the first dash.
bool read_uuid(std::string_view text, GpuUuid& uuid) {
  if (!text.starts_with("GPU-")) return false;
  std::string digits;
  for (char c : text.substr(4))
    if (std::isxdigit(static_cast<unsigned char>(c)) != 0) digits += c;
    else if (c != '-') break;
  if (digits.size() != 2 * uuid.size()) return false;
  for (std::size_t i = 0; i < uuid.size(); ++i)
    std::from_chars(digits.data() + 2 * i, digits.data() + 2 * i + 2, uuid[i], 16);
  return true;
}

}  // namespace

Sys<GpuFile> gpu_file(int fd) {
  SHMB_TRY(flags, call(Call::dup, [&] { return ::fcntl(fd, F_GETFL); }));
  if ((flags & O_PATH) != 0) return GpuFile{};
  if (const GpuFile fake = fake_file(fd); fake.kind != GpuKind::other) return fake;
  struct statx facts{};
  // The kernel's cached facts, however old: a peer's own file system must not be asked.
  SHMB_TRY_VOID(
      call_void(Call::fstat, [&] { return ::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &facts); }));
  if ((facts.stx_mode & S_IFMT) != S_IFCHR || facts.stx_rdev_major != kMajor) return GpuFile{};
  if (facts.stx_rdev_minor == kControlMinor) return GpuFile{GpuKind::control};
  if (facts.stx_rdev_minor >= kModesetMinor) return GpuFile{};
  return GpuFile{GpuKind::node, facts.stx_rdev_minor};
}

namespace {

Sys<int> status_flags(int fd) {
  return call(Call::dup, [&] { return ::fcntl(fd, F_GETFL); });
}

// Status flags belong to the open file. None of the three calls can block, and who holds the file too can only make its
// own answer wrong.
Sys<bool> same_by_flags(int one, int other) {
  SHMB_TRY(before, status_flags(one));
  SHMB_TRY(unchanged, status_flags(other));
  if (((before ^ unchanged) & O_NONBLOCK) != 0) return false;
  SHMB_TRY_VOID(call_void(Call::dup, [&] { return ::fcntl(one, F_SETFL, before ^ O_NONBLOCK); }));
  const auto changed = status_flags(other);
  SHMB_TRY_VOID(call_void(Call::dup, [&] { return ::fcntl(one, F_SETFL, before); }));
  if (!changed) return std::unexpected(changed.error());
  return ((*changed ^ unchanged) & O_NONBLOCK) != 0;
}

}  // namespace

Sys<bool> same_open_file(int one, int other) {
  if (!fault::pretends_before(6, 10)) {
    auto same = call(Call::dup, [&] { return ::fcntl(one, F_DUPFD_QUERY, other); });
    if (same) return *same == 1;
    if (same.error().value == EBADF) return std::unexpected(same.error());
  }
  const pid_t self = ::getpid();
  auto compared = call(Call::kcmp, [&] {
    return ::syscall(SYS_kcmp, self, self, KCMP_FILE, static_cast<unsigned long>(one),
                     static_cast<unsigned long>(other));
  });
  return compared ? Sys<bool>(*compared == 0) : same_by_flags(one, other);
}

Sys<GpuInformation> gpu_information(std::string_view pci) {
  const std::string folder = folder_of(pci);
  if (folder.empty()) return sys_error(EINVAL);
  SHMB_TRY(text, read_file((driver_folder() + "/gpus/" + folder + "/information").c_str()));
  GpuInformation out;
  const std::string_view minor = line_of(text, "Device Minor:");
  auto [end, failure] = std::from_chars(minor.data(), minor.data() + minor.size(), out.minor);
  if (failure != std::errc() || out.minor >= kModesetMinor || !read_uuid(line_of(text, "GPU UUID:"), out.uuid))
    return sys_error(EPROTO);
  return out;
}

bool gpus_hidden_in_proc() { return exists(driver_folder()) && !exists(driver_folder() + "/gpus"); }

Sys<std::uint32_t> gpu_minor(std::string_view pci) {
  auto known = gpu_information(pci);
  if (known) return known->minor;
  if (known.error().value != ENOENT || !gpus_hidden_in_proc()) return std::unexpected(known.error());
  std::uint32_t only = kModesetMinor;
  for (std::uint32_t minor = 0; minor < kMostMinors; ++minor) {
    if (!exists(gpu_node_path(minor))) continue;
    if (only != kModesetMinor) return sys_error(ENXIO);
    only = minor;
  }
  if (only == kModesetMinor) return sys_error(ENXIO);
  return only;
}

std::string gpu_uuid_text(std::span<const std::uint8_t, 16> uuid, bool mig) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out = mig ? "MIG-" : "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += digits[uuid[i] >> 4];
    out += digits[uuid[i] & 15];
  }
  return out;
}

std::string gpu_node_path(std::uint32_t minor) {
#ifdef SHMB_TEST_SEAM
  if (const std::string root = fault::gpu_root(); !root.empty()) return root + "/fake-nvidia" + std::to_string(minor);
#endif
  return "/dev/nvidia" + std::to_string(minor);
}

Sys<Fd> open_gpu_node(std::uint32_t minor) { return open(gpu_node_path(minor).c_str(), O_RDWR | O_NOCTTY); }

}  // namespace shmb::sys
