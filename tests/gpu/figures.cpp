// SPDX-License-Identifier: Apache-2.0
// Figures of the calls the design uses: import against legacy IPC, creation and export, bandwidth through an imported
// mapping, the price of a consumer's context.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/gpu/actor.hpp"
#include "tests/gpu/card.hpp"
#include "tests/gpu/gpu.hpp"
#include "tests/gpu/report.hpp"
#include "tests/gpu/tests.hpp"

namespace shmb::facts {
namespace {

constexpr std::uint64_t kSeed = 0x5eed0006;
std::vector<std::size_t> sizes() {
  if (settings.quick) return {2 * kMiB, 64 * kMiB};
  return {2 * kMiB, 64 * kMiB, kGiB, 16 * kGiB, 64 * kGiB};
}
constexpr int kTimes = 30, kWarm = 3;

std::string named(const char* what, std::size_t bytes) {
  return std::string(what) +
         (bytes < kGiB ? "_" + std::to_string(bytes / kMiB) + "MiB" : "_" + std::to_string(bytes / kGiB) + "GiB");
}

double us_since(double start) { return (now_ms() - start) * 1000; }

void import_times(const Line& line, std::size_t bytes) {
  start_gpu();
  Message order = line.expect("vmm");
  Samples import, reserve, map, access, whole, unmap_all;
  for (int i = 0; i < kTimes + kWarm; ++i) {
    Region region{0, 0, bytes};
    const double t0 = now_ms();
    must(try_import(order.fds.at(0), &region.handle), "cuMemImportFromShareableHandle");
    const double t1 = now_ms();
    must(cu.address_reserve(&region.address, bytes, 0, 0, 0), "cuMemAddressReserve");
    const double t2 = now_ms();
    must(cu.mem_map(region.address, bytes, 0, region.handle, 0), "cuMemMap");
    const double t3 = now_ms();
    const AccessDesc who{{kDeviceLocation, 0}, kReadWrite};
    must(cu.mem_access(region.address, bytes, &who, 1), "cuMemSetAccess");
    const double t4 = now_ms();
    unmap(region);
    const double t5 = now_ms();
    if (i < kWarm) continue;
    import.add((t1 - t0) * 1000), reserve.add((t2 - t1) * 1000), map.add((t3 - t2) * 1000);
    access.add((t4 - t3) * 1000), whole.add((t4 - t0) * 1000), unmap_all.add((t5 - t4) * 1000);
  }
  fact(named("vmm_open", bytes).c_str(), "%s (medians: import %.1f, reserve %.1f, map %.1f, access %.1f us)",
       whole.text("us").c_str(), import.median(), reserve.median(), map.median(), access.median());
  fact(named("vmm_close", bytes).c_str(), "%s", unmap_all.text("us").c_str());
  close_all(order.fds);
  line.say("vmm done");
  const Message legacy = line.hear();
  IpcHandle handle{};
  std::memcpy(handle.reserved, legacy.text.data(), std::min(legacy.text.size(), sizeof handle.reserved));
  Samples opened, closed;
  for (int i = 0; i < kTimes + kWarm; ++i) {
    Address address = 0;
    const double t0 = now_ms();
    must(cu.ipc_open_mem(&address, handle, kLazyPeer), "cuIpcOpenMemHandle");
    const double t1 = now_ms();
    must(cu.ipc_close_mem(address), "cuIpcCloseMemHandle");
    const double t2 = now_ms();
    if (i >= kWarm) opened.add((t1 - t0) * 1000), closed.add((t2 - t1) * 1000);
  }
  fact(named("legacy_open", bytes).c_str(), "%s", opened.text("us").c_str());
  fact(named("legacy_close", bytes).c_str(), "%s", closed.text("us").c_str());
  if (!settings.quick && whole.median() >= opened.median())
    wrong("an open of %zu MiB takes %.1f us, and cuIpcOpenMemHandle %.1f us: the target is to be ahead of it",
          bytes / kMiB, whole.median(), opened.median());
  line.say(std::to_string(whole.median()));
  until_end(line);
}

}  // namespace

void p1_import() {
  double smallest = 0;
  for (const std::size_t bytes : sizes()) {
    Actor producer("producer", [&](const Line& line) {
      start_gpu();
      MemHandle handle = 0;
      if (const Code code = try_create(bytes, &handle); code != kSuccess) {
        line.say(code_text(code));
        until_end(line);
        return;
      }
      std::vector<int> fds{export_fd(handle)};
      line.say("vmm", fds);
      close_all(fds);
      line.expect("legacy");
      must(cu.mem_release(handle), "cuMemRelease");
      Address address = 0;
      must(cu.mem_alloc(&address, bytes), "cuMemAlloc");
      IpcHandle legacy{};
      must(cu.ipc_get_mem(&legacy, address), "cuIpcGetMemHandle");
      line.say(std::string(legacy.reserved, sizeof legacy.reserved));
      until_end(line);
    });
    Message published = producer.line().hear();
    if (published.text != "vmm") {
      fact(named("vmm_open", bytes).c_str(), "does not fit this card: %s", published.text.c_str());
      producer.finish();
      continue;
    }
    Actor consumer("consumer", [&](const Line& line) { import_times(line, bytes); });
    consumer.line().say("vmm", published.fds);
    consumer.line().expect("vmm done");
    close_all(published.fds);
    producer.line().say("legacy");
    consumer.line().say(producer.line().hear().text);
    const double median = std::stod(consumer.line().hear().text);
    if (smallest == 0) smallest = median;
    // Shown, not asked: there is one page-table entry for 2 MiB.
    fact(named("times_of_2MiB", bytes).c_str(), "%.2f", median / smallest);
    consumer.finish();
    producer.finish();
  }
}

void p2_create() {
  Actor producer("producer", [](const Line& line) {
    start_gpu();
    for (const std::size_t bytes : sizes()) {
      Samples created, mapped, exported, dropped;
      for (int i = 0; i < kTimes + kWarm; ++i) {
        double start = now_ms();
        MemHandle handle = 0;
        if (const Code code = try_create(bytes, &handle); code != kSuccess) {
          fact(named("create", bytes).c_str(), "does not fit this card: %s", code_text(code).c_str());
          break;
        }
        const double create_us = us_since(start);
        start = now_ms();
        const int fd = export_fd(handle);
        const double export_us = us_since(start);
        start = now_ms();
        Region region = map_handle(handle, bytes);
        const double map_us = us_since(start);
        start = now_ms();
        unmap(region);
        close(fd);
        if (i < kWarm) continue;
        created.add(create_us), exported.add(export_us), mapped.add(map_us), dropped.add(us_since(start));
      }
      fact(named("create", bytes).c_str(), "%s", created.text("us").c_str());
      fact(named("export", bytes).c_str(), "%s", exported.text("us").c_str());
      fact(named("map", bytes).c_str(), "%s", mapped.text("us").c_str());
      fact(named("drop", bytes).c_str(), "%s", dropped.text("us").c_str());
    }
    Samples allocated;
    for (int i = 0; i < kTimes + kWarm; ++i) {
      const double start = now_ms();
      Address address = 0;
      must(cu.mem_alloc(&address, kGiB), "cuMemAlloc");
      if (i >= kWarm) allocated.add(us_since(start));
      must(cu.mem_free(address), "cuMemFree");
    }
    fact("cuMemAlloc_1GiB", "%s", allocated.text("us").c_str());
    until_end(line);
  });
  producer.finish();
}

void p6_bandwidth() {
  const std::size_t bytes = large(8 * kGiB);
  const auto rate = [&](Address to, Address from) {
    const Stream stream = make_stream();
    Samples samples;
    for (int i = 0; i < kTimes + kWarm; ++i) {
      const double start = now_ms();
      must(cu.copy_on_device(to, from, bytes, stream), "cuMemcpyDtoDAsync");
      must(cu.stream_sync(stream), "cuStreamSynchronize");
      if (i >= kWarm) samples.add(2.0 * static_cast<double>(bytes) / 1e9 / (now_ms() - start));
    }
    return samples.median();
  };
  Actor producer("producer", [&](const Line& line) {
    start_gpu();
    const Region region = create_mapped(bytes);
    fill(region.address, bytes, kSeed);
    std::vector<int> fds{export_fd(region.handle)};
    line.say("published", fds);
    close_all(fds);
    until_end(line);
  });
  Message published = producer.line().expect("published");
  Actor consumer("consumer", [&](const Line& line) {
    start_gpu();
    Message order = line.expect("import");
    const Region foreign = import_mapped(order.fds.at(0), bytes);
    const Region own = create_mapped(bytes), other = create_mapped(bytes);
    Address plain = 0;
    must(cu.mem_alloc(&plain, bytes), "cuMemAlloc");
    const double local = rate(own.address, other.address);
    const double imported = rate(own.address, foreign.address);
    const double legacy = rate(plain, own.address);
    fact("copy_tb_s", "read and write: own to own %.2f, imported to own %.2f, own to cuMemAlloc %.2f", local, imported,
         legacy);
    if (!settings.quick && imported < 0.95 * local)
      wrong("copies through an imported mapping reach %.2f of local ones: the target is 0.95", imported / local);
    until_end(line);
  });
  consumer.line().say("import", {published.fds.at(0)});
  consumer.finish();
  producer.finish();
}

void p8_context() {
  const Card base = read_card();
  Actor consumer("consumer", [](const Line& line) {
    const double start = now_ms();
    start_driver();
    const double driver = now_ms();
    line.say("driver");
    line.expect("go on");
    const double before = now_ms();
    start_gpu();
    fact("start_ms", "cuInit %.0f, context and kernels %.0f", driver - start, now_ms() - before);
    line.say("context");
    until_end(line);
  });
  consumer.line().expect("driver");
  const Card driver = read_card();
  const long driver_rss = rss_kib(consumer.pid());
  consumer.line().say("go on");
  consumer.line().expect("context");
  const Card context = read_card();
  fact("card_mib", "cuInit %.1f, context %.1f", driver.used_mib() - base.used_mib(),
       context.used_mib() - driver.used_mib());
  fact("process_list", "after cuInit: %s; with context: %s", driver.process_text(consumer.pid()).c_str(),
       context.process_text(consumer.pid()).c_str());
  fact("resident_mib", "cuInit %.1f, context %.1f", static_cast<double>(driver_rss) / 1024,
       static_cast<double>(rss_kib(consumer.pid())) / 1024);
  fact("descriptors", "%zu, %s", fd_count(consumer.pid()), nvidia_fds(consumer.pid()).c_str());
  consumer.finish();
}

}  // namespace shmb::facts
