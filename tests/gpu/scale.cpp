// SPDX-License-Identifier: Apache-2.0
// Many of everything: cycles that must leave nothing behind in any of the three processes or on the card, many
// consumers at once, many regions at once.
#include <sys/resource.h>
#include <unistd.h>

#include <memory>

#include "tests/gpu/actor.hpp"
#include "tests/gpu/card.hpp"
#include "tests/gpu/gpu.hpp"
#include "tests/gpu/report.hpp"
#include "tests/gpu/tests.hpp"

namespace shmb::facts {
namespace {

constexpr std::uint64_t kSeed = 0x5eed0004;

// One region a cycle: create, map, export twice, hand over, drop everything.
void cycling_producer(const Line& line, std::size_t bytes) {
  start_gpu();
  line.say("ready");
  for (;;) {
    const Message order = line.hear();
    if (order.end || order.text == "end") return;
    Region region = create_mapped(bytes);
    std::vector<int> fds{export_fd(region.handle), export_fd(region.handle)};
    line.say("published", fds);
    close_all(fds);
    unmap(region);
  }
}

void cycling_consumer(const Line& line, std::size_t bytes) {
  start_gpu();
  line.say("ready");
  for (;;) {
    Message order = line.hear();
    if (order.end || order.text == "end") return;
    Region region = import_mapped(order.fds.at(0), bytes);
    close_all(order.fds);
    unmap(region);
    line.say("dropped");
  }
}

struct Levels {
  Card card;
  std::size_t fds[3];
  long rss[3];
};

Levels read_levels(const Actor& producer, const Actor& consumer) {
  Levels now{read_card(), {}, {}};
  const pid_t pids[3] = {getpid(), producer.pid(), consumer.pid()};
  for (int i = 0; i < 3; ++i) now.fds[i] = fd_count(pids[i]), now.rss[i] = rss_kib(pids[i]);
  return now;
}

void cycle(std::size_t bytes, int wanted, double limit_ms) {
  Actor producer("producer", [&](const Line& line) { cycling_producer(line, bytes); });
  Actor consumer("consumer", [&](const Line& line) { cycling_consumer(line, bytes); });
  producer.line().expect("ready");
  consumer.line().expect("ready");
  const int warm = wanted / 10;
  Levels before{};
  Samples samples;
  const double start = now_ms();
  int done = 0;
  for (; done < wanted + warm && now_ms() - start < limit_ms; ++done) {
    if (done == warm) {
      sleep_ms(100);  // the producer's unmap of the last cycle runs beside this process
      before = read_levels(producer, consumer);
    }
    const double begin = now_ms();
    producer.line().say("next");
    Message published = producer.line().expect("published");
    consumer.line().say("import", {published.fds.at(1)});
    consumer.line().expect("dropped");
    close_all(published.fds);
    if (done >= warm) samples.add((now_ms() - begin) * 1000);
  }
  if (done <= warm) fail("too slow: %d cycles of %zu MiB in %.0f ms", done, bytes / kMiB, now_ms() - start);
  wait_used(before.card.used, 3000);
  const Levels after = read_levels(producer, consumer);
  const int counted = done - warm;
  const std::string name = std::to_string(bytes / kMiB) + "_mib";
  fact(name.c_str(), "%d cycles of publish, import, unref: %s", counted, samples.text("us").c_str());
  fact((name + "_used").c_str(), "%.2f -> %.2f MiB", before.card.used_mib(), after.card.used_mib());
  const char* roles[3] = {"holder", "producer", "consumer"};
  for (int i = 0; i < 3; ++i) {
    fact((name + "_" + roles[i]).c_str(), "fds %zu -> %zu, resident %ld -> %ld KiB", before.fds[i], after.fds[i],
         before.rss[i], after.rss[i]);
    if (after.fds[i] != before.fds[i]) wrong("descriptors of the %s grow with %zu MiB cycles", roles[i], bytes / kMiB);
    if (after.rss[i] - before.rss[i] > 1024) {
      wrong("memory of the %s grew by %ld KiB in %d cycles", roles[i], after.rss[i] - before.rss[i], counted);
    }
  }
  if (before.card.known && after.card.used > before.card.used + 2 * kMiB) wrong("the card loses memory");
  if (counted < wanted) fact((name + "_cut").c_str(), "only %d of %d cycles in the time given", counted, wanted);
  consumer.finish();
  producer.finish();
}

void many_consumers(int count) {
  constexpr std::size_t kBytes = 256 * kMiB;
  const Card base = read_card();
  Actor producer("producer", [](const Line& line) {
    start_gpu();
    Region region = create_mapped(kBytes);
    fill(region.address, kBytes, kSeed);
    std::vector<int> fds{export_fd(region.handle)};
    line.say("published", fds);
    close_all(fds);
    until_end(line);
  });
  Message published = producer.line().expect("published");
  const double start = now_ms();
  std::vector<std::unique_ptr<Actor>> consumers;
  for (int i = 0; i < count; ++i) {
    consumers.push_back(std::make_unique<Actor>("consumer", [](const Line& line) {
      Message order = line.expect("import");
      start_gpu();
      const Region region = import_mapped(order.fds.at(0), kBytes);
      close_all(order.fds);
      line.say(std::to_string(mismatches(region.address, kBytes, kSeed)) + " words differ");
      line.expect("again");
      line.say(std::to_string(mismatches(region.address, kBytes, kSeed)) + " words differ");
      until_end(line);
    }));
    consumers.back()->line().say("import", {published.fds.at(0)});
  }
  for (const auto& consumer : consumers) consumer->line().expect("0 words differ");
  const double all = now_ms() - start;
  producer.kill();
  const Card full = read_card();
  const double again = now_ms();
  for (const auto& consumer : consumers) consumer->line().say("again");
  for (const auto& consumer : consumers) consumer->line().expect("0 words differ");
  fact("consumers", "%d at once, all checked after %.0f ms, once more with the producer dead in %.0f ms", count, all,
       now_ms() - again);
  fact("consumers_used_mib", "base %.1f, all %.1f", base.used_mib(), full.used_mib());
  for (const auto& consumer : consumers) consumer->line().say("end");
  for (const auto& consumer : consumers) consumer->reap();
  close_all(published.fds);
  const Card end = wait_used(base.used, 10000);
  fact("consumers_end_mib", "%.1f", end.used_mib());
  if (base.known && end.used > base.used + 2 * kMiB) wrong("memory is not returned after many consumers");
}

void many_regions(std::size_t count) {
  constexpr std::size_t kBytes = 2 * kMiB;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < count + 256) count = limit.rlim_max - 256;
  const Card base = read_card();
  Actor producer("producer", [&](const Line& line) {
    start_gpu();
    Samples created, exported;
    for (std::size_t i = 0; i < count; ++i) {
      double begin = now_ms();
      Region region = create_mapped(kBytes);
      created.add((now_ms() - begin) * 1000);
      must(poke(region.address, kSeed + i), "poke");
      begin = now_ms();
      std::vector<int> fds{export_fd(region.handle)};
      exported.add((now_ms() - begin) * 1000);
      unmap(region);
      line.say("one", fds);
      close_all(fds);
    }
    fact("regions_create_map", "%s", created.text("us").c_str());
    fact("regions_export", "%s", exported.text("us").c_str());
    until_end(line);
  });
  std::vector<int> held;
  for (std::size_t i = 0; i < count; ++i) held.push_back(producer.line().expect("one").fds.at(0));
  producer.finish();
  const Card full = read_card();
  Actor consumer("consumer", [&](const Line& line) {
    start_gpu();
    std::vector<Region> regions;
    Samples samples;
    for (std::size_t i = 0; i < count; ++i) {
      Message order = line.expect("one");
      const double begin = now_ms();
      regions.push_back(import_mapped(order.fds.at(0), kBytes));
      samples.add((now_ms() - begin) * 1000);
      close_all(order.fds);
    }
    std::size_t bad = 0;
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t word = 0;
      must(cu.copy_to_host(&word, regions[i].address, sizeof word), "cuMemcpyDtoH");
      bad += word != kSeed + i;
    }
    fact("regions_import_map", "%s", samples.text("us").c_str());
    line.say(std::to_string(bad) + " regions differ");
    until_end(line);
  });
  for (const int fd : held) consumer.line().say("one", {fd});
  const std::string answer = consumer.line().hear().text;
  fact("regions", "%zu live, producer gone: %s; used %.1f -> %.1f MiB", count, answer.c_str(), base.used_mib(),
       full.used_mib());
  if (answer != "0 regions differ") wrong("many live regions lose data");
  consumer.finish();
  close_all(held);
  const Card end = wait_used(base.used, 10000);
  fact("regions_end_mib", "%.1f", end.used_mib());
  if (base.known && end.used > base.used + 2 * kMiB) wrong("memory is not returned after many regions");
}

}  // namespace

void t12_cycles() {
  cycle(64 * kMiB, settings.quick ? 100 : 1000, 30'000);
  cycle(2 * kMiB, settings.quick ? 200 : 10'000, 45'000);
}

void t13_many() {
  many_consumers(settings.quick ? 4 : 64);
  many_regions(settings.quick ? 32 : 4096);
}

}  // namespace shmb::facts
