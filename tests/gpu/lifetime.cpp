// SPDX-License-Identifier: Apache-2.0
// Does memory exported as a descriptor outlive its producer, and when is it really gone? The whole GPU design stands
// on T1: the holder has the descriptor, no driver and no context.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/gpu/actor.hpp"
#include "tests/gpu/card.hpp"
#include "tests/gpu/gpu.hpp"
#include "tests/gpu/report.hpp"
#include "tests/gpu/tests.hpp"

namespace shmb::facts {
namespace {

constexpr std::uint64_t kSeed = 0x5eed0001;

// Creates a region, fills it, hands over two exports and waits.
void producer(const Line& line, std::size_t bytes) {
  start_gpu();
  Region region = create_mapped(bytes);
  fill(region.address, bytes, kSeed);
  std::vector<int> fds{export_fd(region.handle), export_fd(region.handle)};
  release_handle(region);
  line.say("published", fds);
  close_all(fds);
  until_end(line);
}

// Imports what it gets, compares every word, says how many differ.
void reader(const Line& line, std::size_t bytes) {
  start_gpu();
  line.say("ready");
  Message order = line.expect("import");
  const double start = now_ms();
  MemHandle handle = 0;
  const Code code = try_import(order.fds.at(0), &handle);
  close_all(order.fds);
  if (code != kSuccess) {
    line.say("import gave " + code_text(code));
  } else {
    const Region region = map_handle(handle, bytes);
    line.say(std::to_string(mismatches(region.address, bytes, kSeed)) + " words differ");
    fact("import_map_check_ms", "%.1f for %zu MiB", now_ms() - start, bytes / kMiB);
  }
  until_end(line);
}

std::string read_in_fresh_process(int fd, std::size_t bytes) {
  Actor consumer("consumer", [&](const Line& line) { reader(line, bytes); });
  consumer.line().expect("ready");
  consumer.line().say("import", {fd});
  const Message answer = consumer.line().hear();
  if (answer.end) return "the consumer ended";
  consumer.finish();
  return answer.text;
}

bool same_data(const std::string& answer) { return answer == "0 words differ"; }

}  // namespace

void t1_producer_killed() {
  for (const std::size_t bytes : {64 * kMiB, kGiB}) {
    if (settings.quick && bytes == kGiB) continue;
    Actor made("producer", [&](const Line& line) { producer(line, bytes); });
    Message published = made.line().expect("published");
    made.kill();
    const std::string at_once = read_in_fresh_process(published.fds.at(0), bytes);
    fact("after_0_s", "%zu MiB: %s", bytes / kMiB, at_once.c_str());
    sleep_ms(settings.wait_ms);
    const std::string later = read_in_fresh_process(published.fds.at(0), bytes);
    fact("later", "%zu MiB, %d ms: %s", bytes / kMiB, settings.wait_ms, later.c_str());
    if (!same_data(at_once) || !same_data(later)) wrong("memory of a killed producer is not readable");
    close_all(published.fds);
  }
  fact("holder", "libcuda mapped: %s", maps_has(getpid(), "libcuda") ? "yes" : "no");
  if (maps_has(getpid(), "libcuda")) wrong("the holder loaded libcuda, the test proves nothing");
}

void t2_killed_under_a_kernel() {
  const std::size_t bytes = large(4 * kGiB);
  const Card base = read_card();
  Actor made("producer", [&](const Line& line) { producer(line, bytes); });
  Message published = made.line().expect("published");
  Actor consumer("consumer", [&](const Line& line) {
    start_gpu();
    Message order = line.expect("import");
    Region region = import_mapped(order.fds.at(0), bytes);
    close_all(order.fds);
    const Stream stream = make_stream();
    line.say(std::to_string(mismatches(region.address, bytes, kSeed)) + " words differ");
    watch(region.address, bytes, kSeed, lasting(4'000'000'000), stream);
    line.say("kernel running");
    const Watched seen = count_watched(stream);
    fact("kernel", "%llu whole rounds over %zu MiB in one kernel, %llu words differed",
         static_cast<unsigned long long>(seen.rounds), bytes / kMiB, static_cast<unsigned long long>(seen.mismatches));
    if (seen.mismatches != 0 || seen.rounds == 0) wrong("the running kernel saw other data");
    line.say("kernel done");
    until_end(line);
  });
  consumer.line().say("import", {published.fds.at(1)});
  consumer.line().expect("0 words differ");
  consumer.line().expect("kernel running");
  sleep_ms(300);
  const Card both = read_card();
  const double killed = now_ms();
  made.kill();
  fact("producer_reaped_ms", "%.1f", now_ms() - killed);
  const Card after = read_card();
  fact("producer_after_kill", "%s", after.process_text(made.pid()).c_str());
  consumer.line().expect("kernel done");
  const Card with_consumer = read_card();
  consumer.finish();
  const Card held = wait_used(base.used + bytes, 3000);
  close_all(published.fds);
  const double closed = now_ms();
  const Card end = wait_used(base.used, 5000);
  fact("used_mib", "base %.1f, both %.1f, producer killed %.1f, consumer done %.1f, only fds %.1f, closed %.1f",
       base.used_mib(), both.used_mib(), after.used_mib(), with_consumer.used_mib(), held.used_mib(), end.used_mib());
  fact("back_to_base_ms", "%.0f after the last close", now_ms() - closed);
  if (!base.known) return;
  if (held.used < base.used + bytes) wrong("the descriptors alone do not hold the memory");
  if (end.used > base.used + 2 * kMiB) wrong("memory is not returned after the last close");
}

void t3_device_node() {
  constexpr std::size_t kBytes = 64 * kMiB;
  const std::string node = gpu_node();
  if (node.empty()) skip("no /dev/nvidia<n> node");
  for (const bool pinned : {false, true}) {
    Actor made("producer", [](const Line& line) { producer(line, kBytes); });
    Message published = made.line().expect("published");
    const int pin = pinned ? open(node.c_str(), O_RDWR | O_CLOEXEC) : -1;
    if (pinned && pin < 0) skip("%s cannot be opened: %s", node.c_str(), std::strerror(errno));
    made.finish();
    const std::string holders = node_holders(node);
    sleep_ms(settings.pin_wait_s * 1000);
    const std::string answer = read_in_fresh_process(published.fds.at(0), kBytes);
    fact(pinned ? "with_device_node" : "export_fds_only", "%d s: %s; holders of %s meanwhile: %s", settings.pin_wait_s,
         answer.c_str(), node.c_str(), holders.empty() ? "none" : holders.c_str());
    if (pinned && !same_data(answer)) wrong("an open device node does not keep the memory");
    if (pin >= 0) close(pin);
    close_all(published.fds);
  }
}

void t6_keeper_outlives_share() {
  constexpr std::size_t kBytes = 64 * kMiB;
  Actor made("producer", [](const Line& line) { producer(line, kBytes); });
  Message published = made.line().expect("published");
  const std::string by_share = read_in_fresh_process(published.fds.at(1), kBytes);
  made.finish();
  close(published.fds.at(1));
  published.fds.pop_back();
  const std::string by_keeper = read_in_fresh_process(published.fds.at(0), kBytes);
  fact("share", "%s", by_share.c_str());
  fact("keeper_after_share_closed", "%s", by_keeper.c_str());
  if (!same_data(by_share) || !same_data(by_keeper)) wrong("keeper and share are not independent");
  close_all(published.fds);
}

void t8_no_context_allocator() {
  const std::size_t bytes = large(kGiB);
  const Card base = read_card();
  Actor agent("agent", [&](const Line& line) {
    start_driver();
    line.say("initialised");
    line.expect("create");
    const double start = now_ms();
    const MemHandle handle = create(bytes);
    const double created = now_ms();
    std::vector<int> fds{export_fd(handle)};
    fact("create_ms", "%.2f for %zu MiB, export %.3f", created - start, bytes / kMiB, now_ms() - created);
    Context context = nullptr;
    must(cu.context_get(&context), "cuCtxGetCurrent");
    fact("agent_context", "%s", context == nullptr ? "none" : "one appeared");
    line.say("made", fds);
    close_all(fds);
    until_end(line);
  });
  agent.line().expect("initialised");
  const Card initialised = read_card();
  fact("agent_fds", "%zu open, %s", fd_count(agent.pid()), nvidia_fds(agent.pid()).c_str());
  fact("agent_rss_mib", "%.1f", static_cast<double>(rss_kib(agent.pid())) / 1024);
  agent.line().say("create");
  Message made = agent.line().expect("made");
  const Card created = read_card();
  fact("agent_in_process_list", "%s", created.process_text(agent.pid()).c_str());
  fact("used_mib", "base %.1f, after cuInit %.1f, after create of %zu MiB %.1f", base.used_mib(),
       initialised.used_mib(), bytes / kMiB, created.used_mib());
  Actor writer("writer", [&](const Line& line) {
    start_gpu();
    Message order = line.expect("fill");
    const Region region = import_mapped(order.fds.at(0), bytes);
    fill(region.address, bytes, kSeed);
    line.say("filled");
    until_end(line);
  });
  writer.line().say("fill", {made.fds.at(0)});
  writer.line().expect("filled");
  writer.finish();
  const std::string answer = read_in_fresh_process(made.fds.at(0), bytes);
  fact("written_by_one_read_by_other", "%s", answer.c_str());
  if (!same_data(answer)) wrong("memory of an allocator without a context is not usable");
  agent.finish();
  close_all(made.fds);
}

void t15_consumer_killed_in_kernel() {
  const std::size_t bytes = large(4 * kGiB);
  const Card base = read_card();
  Actor made("producer", [&](const Line& line) { producer(line, bytes); });
  Message published = made.line().expect("published");
  Actor consumer("consumer", [&](const Line& line) {
    start_gpu();
    Message order = line.expect("import");
    const Region region = import_mapped(order.fds.at(0), bytes);
    close_all(order.fds);
    watch(region.address, bytes, kSeed, 20'000'000'000, make_stream());
    line.say("kernel running");
    until_end(line);
  });
  consumer.line().say("import", {published.fds.at(1)});
  consumer.line().expect("kernel running");
  sleep_ms(200);
  const double killed = now_ms();
  consumer.kill();
  fact("reaped_ms", "%.1f after SIGKILL inside a 20 s kernel", now_ms() - killed);
  const std::string answer = read_in_fresh_process(published.fds.at(0), bytes);
  fact("region_afterwards", "%s", answer.c_str());
  if (!same_data(answer)) wrong("a killed consumer harmed the region");
  made.finish();
  close_all(published.fds);
  const double closed = now_ms();
  const Card end = wait_used(base.used, 10000);
  fact("used_mib", "base %.1f, end %.1f, waited %.0f ms", base.used_mib(), end.used_mib(), now_ms() - closed);
  if (base.known && end.used > base.used + 2 * kMiB) wrong("memory is not returned");
}

}  // namespace shmb::facts
