// SPDX-License-Identifier: Apache-2.0
// Faults on purpose: writes through a read-only mapping, fork after init, a full card, a dead context, and
// whether fresh memory shows another process' bytes. Each asks how far the damage spreads.
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/actor.hpp"
#include "tests/gpu/gpu.hpp"
#include "tests/gpu/report.hpp"
#include "tests/gpu/tests.hpp"

namespace shmb::facts {
namespace {

constexpr std::size_t kBytes = 64 * kMiB;
constexpr std::uint64_t kSeed = 0x5eed0003;

// Publishes a region; on "check" says how many words differ; on "end" ends.
void keep_and_check(const Line& line) {
  start_gpu();
  const Region region = create_mapped(kBytes);
  fill(region.address, kBytes, kSeed);
  std::vector<int> fds{export_fd(region.handle), export_fd(region.handle)};
  line.say("published", fds);
  close_all(fds);
  for (;;) {
    const Message order = line.hear();
    if (order.end || order.text == "end") return;
    line.say(std::to_string(mismatches(region.address, kBytes, kSeed)) + " words differ");
  }
}

// The calls that still work in a context after its first fatal error.
void tell_afterlife(Region region) {
  const Code unmapped = cu.mem_unmap(region.address, region.bytes);
  const Code freed = cu.address_free(region.address, region.bytes);
  const Code released = cu.mem_release(region.handle);
  MemHandle handle = 0;
  const Code created = try_create(kBytes, &handle);
  std::size_t free_bytes = 0, total = 0;
  const Code info = cu.mem_info(&free_bytes, &total);
  fact("afterwards", "cuMemUnmap %d, cuMemAddressFree %d, cuMemRelease %d, cuMemCreate %d, cuMemGetInfo %d", unmapped,
       freed, released, created, info);
}

std::string ask_check(const Actor& actor) {
  actor.line().say("check");
  return actor.line().hear().text;
}

}  // namespace

void t7_read_only() {
  Actor made("producer", keep_and_check);
  Message published = made.line().expect("published");
  Actor reader("reader", [](const Line& line) {
    start_gpu();
    Message order = line.expect("import");
    const Region region = import_mapped(order.fds.at(0), kBytes, kRead);
    if (mismatches(region.address, kBytes, kSeed) != 0) wrong("reading through a read-only mapping gives other data");
    const Code code = poke(region.address + 4096, 1);
    fact("write_through_read_only", "%s", code_text(code).c_str());
    if (code != kIllegalAddress) wrong("a write through a read-only mapping is not stopped with 700");
    tell_afterlife(region);
    line.say("poked");
    until_end(line);
  });
  reader.line().say("import", {published.fds.at(1)});
  reader.line().expect("poked");
  const std::string while_faulted = ask_check(made);
  fact("producer_after_fault", "%s", while_faulted.c_str());
  reader.finish();
  Actor writer("writer", [](const Line& line) {
    start_gpu();
    Message order = line.expect("import");
    Region region = import_mapped(order.fds.at(0), kBytes, kReadWrite);
    const Code code = poke(region.address + 4096, 1);
    fact("same_fd_mapped_read_write", "%s, %llu words differ", code_text(code).c_str(),
         static_cast<unsigned long long>(mismatches(region.address, kBytes, kSeed)));
    line.say("poked");
    until_end(line);
  });
  writer.line().say("import", {published.fds.at(1)});
  writer.line().expect("poked");
  const std::string after_write = ask_check(made);
  fact("producer_after_write", "%s", after_write.c_str());
  if (while_faulted != "0 words differ") wrong("the refused write changed data or harmed the producer");
  writer.finish();
  made.finish();
}

void t14_fork() {
  Actor parent("parent", [](const Line& line) {
    start_gpu();
    Region region = create_mapped(kBytes);
    fill(region.address, kBytes, kSeed);
    const pid_t child = fork();
    if (child == 0) {
      Context context = nullptr;
      const Code current = cu.context_get(&context);
      std::size_t free_bytes = 0, total = 0;
      const Code info = cu.mem_info(&free_bytes, &total);
      MemHandle handle = 0;
      const Code created = try_create(kBytes, &handle);
      const Code init = cu.init(0);
      fact("in_child", "cuCtxGetCurrent %d, cuMemGetInfo %d, cuMemCreate %d, cuInit %d", current, info, created, init);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    fact("child_ended", "wait status %d", status);
    const std::uint64_t differ = mismatches(region.address, kBytes, kSeed);
    unmap(region);
    fact("parent_afterwards", "%llu words differ, unmapped", static_cast<unsigned long long>(differ));
    if (differ != 0) wrong("the parent was harmed by fork");
    until_end(line);
  });
  parent.finish();
}

void t16_out_of_memory() {
  Actor bystander("bystander", keep_and_check);
  Message published = bystander.line().expect("published");
  Actor hog("hog", [](const Line& line) {
    start_gpu();
    Message order = line.expect("fill the card");
    std::vector<MemHandle> held;
    Code code = kSuccess;
    std::size_t bytes = 0;
    const double start = now_ms();
    for (std::size_t chunk = 4 * kGiB; chunk >= 2 * kMiB; chunk /= 8) {
      for (;;) {
        MemHandle handle = 0;
        code = try_create(chunk, &handle);
        if (code != kSuccess) break;
        held.push_back(handle);
        bytes += chunk;
      }
      if (code != kOutOfMemory) break;
    }
    fact("full", "%zu allocations, %zu MiB in %.0f ms, then %s", held.size(), bytes / kMiB, now_ms() - start,
         code_text(code).c_str());
    if (code != kOutOfMemory) wrong("a full card does not answer CUDA_ERROR_OUT_OF_MEMORY");
    MemHandle imported = 0;
    const Code import = try_import(order.fds.at(0), &imported);
    fact("import_on_full_card", "%s", code_text(import).c_str());
    if (import == kSuccess) {
      Region region{imported, 0, kBytes};
      must(cu.address_reserve(&region.address, kBytes, 0, 0, 0), "cuMemAddressReserve");
      const Code mapped = cu.mem_map(region.address, kBytes, 0, imported, 0);
      fact("map_on_full_card", "%s", code_text(mapped).c_str());
      if (mapped == kSuccess) {
        const AccessDesc who = {{kDeviceLocation, 0}, kReadWrite};
        fact("access_on_full_card", "%s", code_text(cu.mem_access(region.address, kBytes, &who, 1)).c_str());
      }
    }
    line.say("full");
    line.expect("free one");
    must(cu.mem_release(held.front()), "cuMemRelease");
    MemHandle again = 0;
    const Code retried = try_create(2 * kMiB, &again);
    fact("retry_after_free", "%s", code_text(retried).c_str());
    if (retried != kSuccess) wrong("a retry after a free is refused");
    line.say("freed");
    until_end(line);
  });
  hog.line().say("fill the card", {published.fds.at(0)});
  hog.line().expect("full");
  const std::string data = ask_check(bystander);
  fact("bystander_on_full_card", "%s", data.c_str());
  if (data != "0 words differ") wrong("another client is harmed by a full card");
  Actor late("late consumer", [](const Line& line) {
    const std::string missing = load_driver();
    if (!missing.empty()) fail("%s", missing.c_str());
    must(cu.init(0), "cuInit");
    Device device = 0;
    must(cu.device_get(&device, 0), "cuDeviceGet");
    Context context = nullptr;
    fact("new_context_on_full_card", "%s", code_text(cu.primary_retain(&context, device)).c_str());
    until_end(line);
  });
  late.finish();
  hog.line().say("free one");
  hog.line().expect("freed");
  hog.finish();
  bystander.finish();
}

void t17_producer_fault() {
  Actor made("producer", [](const Line& line) {
    start_gpu();
    Region region = create_mapped(kBytes);
    fill(region.address, kBytes, kSeed);
    std::vector<int> fds{export_fd(region.handle)};
    line.say("published", fds);
    line.expect("fault");
    Address hole = 0;
    must(cu.address_reserve(&hole, 2 * kMiB, 0, 0, 0), "cuMemAddressReserve");
    const Code code = poke(hole, 1);
    fact("producer_fault", "%s", code_text(code).c_str());
    if (code != kIllegalAddress) wrong("a store to an unmapped address is not 700");
    int late = -1;
    fact("export_after_fault", "%s", code_text(cu.mem_export(&late, region.handle, kPosixFd, 0)).c_str());
    tell_afterlife(region);
    line.say("faulted");
    until_end(line);
  });
  Message published = made.line().expect("published");
  const auto consume = [](const Line& line) {
    start_gpu();
    Message order = line.expect("import");
    const Region region = import_mapped(order.fds.at(0), kBytes);
    for (;;) {
      line.say(std::to_string(mismatches(region.address, kBytes, kSeed)) + " words differ");
      const Message next = line.hear();
      if (next.end || next.text == "end") return;
    }
  };
  Actor before("consumer before the fault", consume);
  before.line().say("import", {published.fds.at(0)});
  before.line().expect("0 words differ");
  made.line().say("fault");
  made.line().expect("faulted");
  const std::string open_consumer = ask_check(before);
  Actor after("consumer after the fault", consume);
  after.line().say("import", {published.fds.at(0)});
  const std::string new_consumer = after.line().hear().text;
  fact("consumer_with_open_import", "%s", open_consumer.c_str());
  fact("new_consumer", "%s", new_consumer.c_str());
  if (open_consumer != "0 words differ" || new_consumer != "0 words differ") wrong("the fault spread to consumers");
  after.finish();
  before.finish();
  made.finish();
}

void t18_fresh_memory() {
  const std::size_t bytes = large(8 * kGiB);
  constexpr std::uint64_t kSecret = 0xfeedfacecafebeefULL;
  Actor first("first owner", [&](const Line& line) {
    start_gpu();
    Region region = create_mapped(bytes);
    fill(region.address, bytes, kSeed);
    // One recognisable word a page, the rest the pattern (never zero).
    for (std::size_t at = 0; at < bytes; at += 64 * kMiB) must(poke(region.address + at, kSecret), "poke");
    unmap(region);
    Region again = create_mapped(bytes);
    const Tally seen = tally(again.address, bytes, kSecret);
    fact("same_process_again", "%llu of %zu words not zero, %llu secret words",
         static_cast<unsigned long long>(seen.nonzero), bytes / 8, static_cast<unsigned long long>(seen.equal));
    fill(again.address, bytes, kSeed);
    for (std::size_t at = 0; at < bytes; at += 64 * kMiB) must(poke(again.address + at, kSecret), "poke");
    line.say("written");
    until_end(line);
  });
  first.line().expect("written");
  first.kill();
  Actor second("second owner", [&](const Line& line) {
    start_gpu();
    Region region = create_mapped(bytes);
    Tally seen = tally(region.address, bytes, kSecret);
    fact("other_process_vmm", "%llu of %zu words not zero, %llu secret words",
         static_cast<unsigned long long>(seen.nonzero), bytes / 8, static_cast<unsigned long long>(seen.equal));
    unmap(region);
    Address address = 0;
    must(cu.mem_alloc(&address, bytes), "cuMemAlloc");
    seen = tally(address, bytes, kSecret);
    fact("other_process_cuMemAlloc", "%llu of %zu words not zero, %llu secret words",
         static_cast<unsigned long long>(seen.nonzero), bytes / 8, static_cast<unsigned long long>(seen.equal));
    until_end(line);
  });
  second.finish();
}

}  // namespace shmb::facts
