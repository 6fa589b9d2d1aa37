// SPDX-License-Identifier: Apache-2.0
// How a descriptor of GPU memory looks to a process without the driver, who may import it, and what the driver
// answers to descriptors that are something else. A broker can check only what T4 shows; T10 and T11 are what is left
// to the importer.
#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tests/gpu/actor.hpp"
#include "tests/gpu/gpu.hpp"
#include "tests/gpu/report.hpp"
#include "tests/gpu/tests.hpp"

namespace shmb::facts {
namespace {

constexpr std::size_t kBytes = 64 * kMiB;
constexpr std::uint64_t kSeed = 0x5eed0002;
constexpr int kDupfdQuery = 1024 + 3;  // F_DUPFD_QUERY, Linux 6.10

void publish(const Line& line) {
  start_gpu();
  Region region = create_mapped(kBytes);
  fill(region.address, kBytes, kSeed);
  std::vector<int> fds{export_fd(region.handle), export_fd(region.handle)};
  fact("close_on_exec_at_export", "%s", (fcntl(fds[0], F_GETFD) & FD_CLOEXEC) != 0 ? "set" : "not set");
  fact("status_flags_at_export", "0x%x", static_cast<unsigned>(fcntl(fds[0], F_GETFL)));
  line.say("published", fds);
  close_all(fds);
  until_end(line);
}

// 1 when both lead to the same open file, 0 when not, -errno when the kernel does not tell.
int same_file_kcmp(int a, int b) {
  const long answer = syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, a, b);
  return answer < 0 ? -errno : answer == 0;
}
int same_file_query(int a, int b) {
  const int answer = fcntl(a, kDupfdQuery, b);
  return answer < 0 ? -errno : answer;
}

// The same by a status flag, which belongs to the open file: what is left where both questions above are forbidden.
std::string same_file_by_flag(int a, int b) {
  const int before = fcntl(a, F_GETFL), other = fcntl(b, F_GETFL);
  if (before < 0 || other < 0) return std::string("F_GETFL: ") + std::strerror(errno);
  if (fcntl(a, F_SETFL, before ^ O_NONBLOCK) != 0) return std::string("F_SETFL: ") + std::strerror(errno);
  const bool taken = ((fcntl(a, F_GETFL) ^ before) & O_NONBLOCK) != 0;
  const bool seen = ((fcntl(b, F_GETFL) ^ other) & O_NONBLOCK) != 0;
  if (fcntl(a, F_SETFL, before) != 0) return std::string("F_SETFL back: ") + std::strerror(errno);
  return !taken ? "the flag is not taken" : seen ? "same" : "different";
}

std::string first_lines(const std::string& path) {
  std::ifstream file(path);
  std::string text, line;
  while (std::getline(file, line) && text.size() < 400) text += (text.empty() ? "" : "; ") + line;
  return text;
}

// Imports in a fresh process whose environment was prepared; says code, and whether the data is right.
void import_and_tell(const Line& line, const char* visible) {
  if (visible != nullptr) setenv("CUDA_VISIBLE_DEVICES", visible, 1);
  Message order = line.expect("import");
  const std::string missing = load_driver();
  if (!missing.empty()) fail("%s", missing.c_str());
  if (const Code code = cu.init(0); code != kSuccess) {
    line.say("cuInit gives " + code_text(code));
  } else if (device_count() == 0) {
    line.say("no device visible");
  } else {
    start_gpu();
    MemHandle handle = 0;
    if (const Code import = try_import(order.fds.at(0), &handle); import != kSuccess) {
      line.say("import gives " + code_text(import));
    } else {
      const Region region = map_handle(handle, kBytes);
      line.say(std::to_string(mismatches(region.address, kBytes, kSeed)) + " words differ");
    }
  }
  until_end(line);
}

std::string import_with(int fd, const char* visible, bool as_nobody = false) {
  Actor consumer("consumer", [&](const Line& line) { import_and_tell(line, visible); }, as_nobody);
  consumer.line().say("import", {fd});
  const Message answer = consumer.line().hear();
  if (answer.end) return "the consumer ended";
  consumer.finish();
  return answer.text;
}

}  // namespace

void t4_descriptor() {
  Actor made("producer", publish);
  Message published = made.line().expect("published");
  const int keeper = published.fds.at(0), share = published.fds.at(1);
  struct stat seen{};
  if (fstat(keeper, &seen) != 0) fail("fstat: %s", std::strerror(errno));
  char target[256] = {};
  if (readlink(("/proc/self/fd/" + std::to_string(keeper)).c_str(), target, sizeof target - 1) < 0) {
    std::strcpy(target, "unreadable");
  }
  fact("fstat", "%s %u:%u, size %lld, link %s", S_ISCHR(seen.st_mode) ? "character device" : "NOT a character device",
       major(seen.st_rdev), minor(seen.st_rdev), static_cast<long long>(seen.st_size), target);
  fact("fdinfo", "%s", first_lines("/proc/self/fdinfo/" + std::to_string(keeper)).c_str());
  const int copy = fcntl(keeper, F_DUPFD_CLOEXEC, 0);
  fact("kcmp", "two exports same file: %d, a duplicate: %d", same_file_kcmp(keeper, share),
       same_file_kcmp(keeper, copy));
  fact("dupfd_query", "two exports same file: %d, a duplicate: %d (negative: -errno)", same_file_query(keeper, share),
       same_file_query(keeper, copy));
  const std::string two = same_file_by_flag(keeper, share), one = same_file_by_flag(keeper, copy);
  fact("nonblock_flag", "two exports: %s, a duplicate: %s", two.c_str(), one.c_str());
  if (two != "different" || one != "same") wrong("O_NONBLOCK does not tell open files apart");
  fact("lseek_end", "%lld, errno %d", static_cast<long long>(lseek(keeper, 0, SEEK_END)), errno);
  void* mapped = mmap(nullptr, 2 * kMiB, PROT_READ, MAP_SHARED, keeper, 0);
  fact("mmap", "%s", mapped == MAP_FAILED ? std::strerror(errno) : "succeeded");
  const int plain = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
  struct stat control{};
  if (plain >= 0 && fstat(plain, &control) == 0) {
    fact("plain_open_of_nvidiactl", "%u:%u, looks the same to fstat: %s", major(control.st_rdev),
         minor(control.st_rdev), control.st_rdev == seen.st_rdev && control.st_ino == seen.st_ino ? "yes" : "no");
  }
  // Memory of the fake is in memfds.
  if (settings.quick) {
    fact("device_number", "not asked of the fake");
  } else if (!S_ISCHR(seen.st_mode) || major(seen.st_rdev) != 195 || minor(seen.st_rdev) != 255) {
    wrong("the descriptor is not character device 195:255");
  }
  if (same_file_kcmp(keeper, copy) == 1 && same_file_kcmp(keeper, share) != 0) wrong("two exports share an open file");
  made.finish();
}

void t5_other_uid() {
  Actor made("producer", publish);
  Message published = made.line().expect("published");
  if (geteuid() != 0) skip("needs root to take another uid");
  const std::string answer = import_with(published.fds.at(0), nullptr, true);
  fact("vmm_import_by_uid_65534", "%s", answer.c_str());
  if (answer != "0 words differ") wrong("another uid cannot use the descriptor");
  made.finish();

  Actor legacy("legacy producer", [](const Line& line) {
    start_gpu();
    Address address = 0;
    must(cu.mem_alloc(&address, kBytes), "cuMemAlloc");
    fill(address, kBytes, kSeed);
    IpcHandle handle{};
    must(cu.ipc_get_mem(&handle, address), "cuIpcGetMemHandle");
    line.say(std::string(handle.reserved, sizeof handle.reserved));
    until_end(line);
  });
  const Message handle = legacy.line().hear();
  for (const bool other : {false, true}) {
    Actor consumer(
        "legacy consumer",
        [&](const Line& line) {
          start_gpu();
          IpcHandle opened{};
          std::memcpy(opened.reserved, handle.text.data(), sizeof opened.reserved);
          Address address = 0;
          const Code code = cu.ipc_open_mem(&address, opened, kLazyPeer);
          fact(other ? "legacy_open_by_uid_65534" : "legacy_open_by_same_uid", "%s%s", code_text(code).c_str(),
               code == kSuccess && mismatches(address, kBytes, kSeed) == 0 ? ", data equal" : "");
          until_end(line);
        },
        other);
    consumer.finish();
  }
  legacy.finish();
}

void t9_visible_devices() {
  Actor made("producer", [](const Line& line) {
    start_gpu();
    line.say(device_uuid());
    const bool peer = device_count() > 1 && are_peers(1, 0);
    line.say(peer ? device_uuid(1) : device_count() > 1 ? "no peer" : "one device");
    publish(line);
  });
  const std::string uuid = made.line().hear().text;
  const std::string peer = made.line().hear().text;
  Message published = made.line().expect("published");
  fact("uuid", "%s", uuid.c_str());
  const std::string by_uuid = import_with(published.fds.at(0), uuid.c_str());
  fact("visible_by_uuid", "%s", by_uuid.c_str());
  fact("visible_empty", "%s", import_with(published.fds.at(0), "").c_str());
  fact("visible_none", "%s", import_with(published.fds.at(0), "-1").c_str());
  fact("visible_unknown_uuid", "%s",
       import_with(published.fds.at(0), "GPU-00000000-0000-0000-0000-000000000001").c_str());
  if (by_uuid != "0 words differ") wrong("a device chosen by UUID cannot import");
  if (peer.starts_with("GPU-")) {  // the importer works on its first device
    const std::string beside = import_with(published.fds.at(0), (peer + "," + uuid).c_str());
    fact("on_a_peer", "%s", beside.c_str());
    if (beside != "0 words differ") wrong("a peer cannot import");
    fact("on_a_peer_owner_hidden", "%s", import_with(published.fds.at(0), peer.c_str()).c_str());
  } else {
    fact("on_a_peer", "not asked: %s", peer.c_str());
  }
  made.finish();
}

void t10_junk_descriptors() {
  Actor consumer("consumer", [](const Line& line) {
    start_gpu();
    int pair[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) fail("socketpair: %s", std::strerror(errno));
    const int memfd = memfd_create("junk", MFD_CLOEXEC);
    if (ftruncate(memfd, static_cast<off_t>(kBytes)) != 0) fail("ftruncate: %s", std::strerror(errno));
    const struct {
      const char* name;
      int fd;
    } junk[] = {{"dev_null", open("/dev/null", O_RDWR | O_CLOEXEC)},
                {"memfd", memfd},
                {"socket", pair[0]},
                {"plain_nvidiactl", open("/dev/nvidiactl", O_RDWR | O_CLOEXEC)},
                {"gpu_node", open(gpu_node().c_str(), O_RDWR | O_CLOEXEC)},
                {"closed_number", 999},
                {"minus_one", -1}};
    for (const auto& [name, fd] : junk) {
      MemHandle handle = 0;
      const Code code = try_import(fd, &handle);
      fact(name, "%s", code_text(code).c_str());
      if (code == kSuccess) wrong("the driver accepted %s", name);
    }
    Region own = create_mapped(kBytes);
    fill(own.address, kBytes, kSeed);
    if (mismatches(own.address, kBytes, kSeed) != 0) wrong("the context is damaged afterwards");
    unmap(own);
    fact("context_afterwards", "works");
    until_end(line);
  });
  consumer.finish();
}

void t11_size_lie() {
  Actor made("producer", publish);
  Message published = made.line().expect("published");
  Actor consumer("consumer", [](const Line& line) {
    start_gpu();
    Message order = line.expect("import");
    MemHandle handle = 0;
    must(try_import(order.fds.at(0), &handle), "cuMemImportFromShareableHandle");
    AllocationProp told{};
    must(cu.mem_properties(&told, handle), "cuMemGetAllocationPropertiesFromHandle");
    fact("properties", "type %d, handle types %d, location %d:%d", told.type, told.requested_handle_types,
         told.location.type, told.location.id);
    for (const std::size_t claimed : {2 * kBytes, kBytes + 2 * kMiB, kBytes, kBytes / 2, 2 * kMiB}) {
      Address address = 0;
      must(cu.address_reserve(&address, claimed, 0, 0, 0), "cuMemAddressReserve");
      const Code code = cu.mem_map(address, claimed, 0, handle, 0);
      fact("map", "%zu MiB of %zu: %s", claimed / kMiB, kBytes / kMiB, code_text(code).c_str());
      if (claimed > kBytes && code == kSuccess) wrong("a larger size than the real one is mapped");
      if (claimed == kBytes && code != kSuccess) wrong("the true size is refused");
      if (code == kSuccess) must(cu.mem_unmap(address, claimed), "cuMemUnmap");
      must(cu.address_free(address, claimed), "cuMemAddressFree");
    }
    until_end(line);
  });
  consumer.line().say("import", {published.fds.at(0)});
  consumer.finish();
  made.finish();
}

}  // namespace shmb::facts
