// SPDX-License-Identifier: Apache-2.0
// T29: may a process take its own right to write away, in place, while one of its kernels reads? In the driver's source
// a change of access unmaps first. So a kernel that reads in that moment may die of error 700. One kernel checks the
// data, another one measures the longest time between two loads; each runs first without a change, then under many.
#include "tests/gpu/actor.hpp"
#include "tests/gpu/gpu.hpp"
#include "tests/gpu/report.hpp"
#include "tests/gpu/tests.hpp"

namespace shmb::facts {
namespace {

constexpr std::size_t kBytes = 64 * kMiB;
constexpr std::uint64_t kSeed = 0x5eed0029;
constexpr int kChanges = 20;

void allow(const Region& region, int access, Samples& times) {
  const AccessDesc who{{kDeviceLocation, 0}, access};
  const double start = now_ms();
  const Code code = cu.mem_access(region.address, region.bytes, &who, 1);
  times.add((now_ms() - start) * 1000);
  if (code != kSuccess)
    fail("cuMemSetAccess to %s gave %s", access == kRead ? "read" : "write", code_text(code).c_str());
}

// Both kernels for that long; false when one of them died.
bool read_on(const char* name, const Region& region, bool changed) {
  const std::uint64_t ns = settings.quick ? 500'000'000 : 2'000'000'000;
  const Stream checking = make_stream(), timing = make_stream();
  Address out = 0;
  must(cu.mem_alloc(&out, 2 * sizeof(std::uint64_t)), "cuMemAlloc");
  watch(region.address, region.bytes, kSeed, ns, checking);
  watch_gaps(region.address, region.bytes, ns, out, timing);
  sleep_ms(static_cast<int>(ns / 4'000'000));
  Samples times;
  for (int i = 0; changed && i < kChanges; ++i) {
    allow(region, kRead, times);
    allow(region, kReadWrite, times);
  }
  const Code first = cu.stream_sync(checking), second = cu.stream_sync(timing);
  if (changed) fact("change", "%s", times.text("us").c_str());
  fact(name, "the checking kernel ended with %s, the timing one with %s", code_text(first).c_str(),
       code_text(second).c_str());
  if (first != kSuccess || second != kSuccess) return false;
  const Watched seen = count_watched(checking);
  std::uint64_t gaps[2] = {};
  must(cu.copy_to_host(gaps, out, sizeof gaps), "cuMemcpyDtoH");
  fact(name, "%llu rounds, %llu words differ, longest time between two loads %.1f us of %llu loads",
       static_cast<unsigned long long>(seen.rounds), static_cast<unsigned long long>(seen.mismatches),
       static_cast<double>(gaps[0]) / 1000, static_cast<unsigned long long>(gaps[1]));
  if (seen.mismatches != 0 || seen.rounds == 0) wrong("the reading kernel saw other data");
  if (gaps[1] == 0) wrong("the timing kernel read nothing");
  return true;
}

}  // namespace

void t29_own_mapping() {
  Actor owner("owner", [](const Line& line) {
    start_gpu();
    const Region region = create_mapped(kBytes);
    fill(region.address, kBytes, kSeed);
    if (!read_on("unchanged", region, false)) fail("kernels die without any change");
    const bool alive = read_on("changed", region, true);
    fact("answer", "%s", alive ? "the kernels live" : "a kernel dies");
    if (alive) {
      Samples once;
      allow(region, kRead, once);
      fact("own_write_afterwards", "%s", code_text(poke(region.address, 1)).c_str());
    } else {
      wrong("a kernel that reads dies when its process makes the mapping read-only in place");
    }
    line.say("done");
    until_end(line);
  });
  owner.line().expect("done");
  owner.finish();
}

}  // namespace shmb::facts
