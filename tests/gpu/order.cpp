// SPDX-License-Identifier: Apache-2.0
// Order between processes without host synchronisation: 64-bit words in a registered memfd, written and waited for by
// streams, against interprocess events; and what becomes of a waiter whose producer is killed.
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "tests/gpu/actor.hpp"
#include "tests/gpu/gpu.hpp"
#include "tests/gpu/report.hpp"
#include "tests/gpu/shared_words.hpp"
#include "tests/gpu/tests.hpp"

namespace shmb::facts {
namespace {

constexpr std::size_t kBytes = 64 * kMiB;
constexpr std::uint64_t kSeed = 0x5eed0005;
constexpr int kReady = 0, kTaken = 1, kStart = 2;  // words
std::uint64_t last_round() { return settings.quick ? 4 : 20; }
constexpr std::uint64_t kPoison = std::uint64_t{1} << 62;  // above every announced value under the cyclic compare

void timeline_producer(const Line& line) {
  start_gpu();
  Message order = line.expect("words");
  Words words(order.fds.at(0));
  words.pin();
  const Region region = create_mapped(kBytes);
  fill(region.address, kBytes, ~kSeed);
  const Stream stream = make_stream();
  std::vector<int> fds{export_fd(region.handle)};
  line.say("published", fds);
  close_all(fds);
  line.expect("rounds");
  for (std::uint64_t round = 1; round <= last_round(); ++round) {
    must(cu.stream_wait64(stream, words.device(kTaken), round - 1, kWaitGeq), "cuStreamWaitValue64");
    spin(round == 1 ? 300'000'000 : 5'000'000, stream);
    fill(region.address, kBytes, kSeed + round, stream);
    must(cu.stream_write64(stream, words.device(kReady), round, 0), "cuStreamWriteValue64");
  }
  line.say("enqueued");
  line.expect("long round");
  spin(3'000'000'000, stream);
  must(cu.stream_write64(stream, words.device(kReady), last_round() + 1, 0), "cuStreamWriteValue64");
  line.say("enqueued");
  until_end(line);
}

void timeline_consumer(const Line& line) {
  start_gpu();
  Message order = line.expect("words");
  Words words(order.fds.at(0));
  words.pin();
  const Region region = import_mapped(order.fds.at(1), kBytes);
  const Stream stream = make_stream();
  clear_counts();
  line.say("ready");
  line.expect("rounds");
  const double start = now_ms();
  for (std::uint64_t round = 1; round <= last_round(); ++round) {
    must(cu.stream_wait64(stream, words.device(kReady), round, kWaitGeq), "cuStreamWaitValue64");
    check_later(region.address, kBytes, kSeed + round, stream);
    must(cu.stream_write64(stream, words.device(kTaken), round, 0), "cuStreamWriteValue64");
  }
  const double enqueued = now_ms();
  const std::uint64_t differ = count_watched(stream).mismatches;
  fact("rounds",
       "%llu rounds of %zu MiB without host synchronisation, enqueued in %.1f ms, done after %.1f ms, %llu "
       "words differ",
       static_cast<unsigned long long>(last_round()), kBytes / kMiB, enqueued - start, now_ms() - start,
       static_cast<unsigned long long>(differ));
  if (differ != 0) wrong("the timeline does not order the data");
  line.say("rounds done");
  line.expect("long round");
  must(cu.stream_wait64(stream, words.device(kReady), last_round() + 1, kWaitGeq), "cuStreamWaitValue64");
  line.say("waiting");
  must(cu.stream_sync(stream), "cuStreamSynchronize");
  line.say("awake");
  until_end(line);
}

// Relays nothing: two actors talk over a pair of their own.
void join(const Actor& a, const Actor& b) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) fail("socketpair: %s", std::strerror(errno));
  a.line().say("peer", {pair[0]});
  b.line().say("peer", {pair[1]});
  close(pair[0]);
  close(pair[1]);
}

Line peer_of(const Line& line) { return Line(line.expect("peer").fds.at(0)); }

constexpr int kPings = 100;

// Round trips between two streams of two processes; the words may be host words or device memory.
void stream_pings(const Line& peer, Address mine, Address other, std::uint64_t base, bool first, const Words& words,
                  const char* name) {
  const Stream stream = make_stream();
  must(cu.stream_wait64(stream, words.device(kStart), base + 1, kWaitGeq), "cuStreamWaitValue64");
  for (std::uint64_t i = 1; i <= kPings; ++i) {
    if (!first) must(cu.stream_wait64(stream, other, base + i, kWaitGeq), "cuStreamWaitValue64");
    must(cu.stream_write64(stream, mine, base + i, 0), "cuStreamWriteValue64");
    if (first) must(cu.stream_wait64(stream, other, base + i, kWaitGeq), "cuStreamWaitValue64");
  }
  if (!first) {
    peer.say("enqueued");
    must(cu.stream_sync(stream), "cuStreamSynchronize");
    peer.say("done");
    return;
  }
  peer.expect("enqueued");
  const double start = now_ms();
  words.store(kStart, base + 1);
  must(cu.stream_sync(stream), "cuStreamSynchronize");
  fact(name, "%.1f us one way (mean of %d)", (now_ms() - start) * 1000 / (2 * kPings), 2 * kPings);
  peer.expect("done");
}

void latency_side(const Line& line, bool first) {
  start_gpu();
  Message order = line.expect("words");
  Words words(order.fds.at(0));
  words.pin();
  const Line peer = peer_of(line);
  // Words in device memory, made by the first side.
  Region region{};
  if (first) {
    region = create_mapped(2 * kMiB);
    const std::uint64_t zero[16] = {};
    must(cu.copy_to_device(region.address, zero, sizeof zero), "cuMemcpyHtoD");
    std::vector<int> fds{export_fd(region.handle)};
    peer.say("region", fds);
    close_all(fds);
  } else {
    region = import_mapped(peer.expect("region").fds.at(0), 2 * kMiB);
  }
  const int mine = first ? 3 : 4, other = first ? 4 : 3;
  stream_pings(peer, words.device(mine), words.device(other), 0, first, words, "stream_to_stream_host_words");
  stream_pings(peer, words.device(mine), words.device(other), 1000, first, words, "stream_to_stream_host_words_again");

  // Stream, host, socket, host, stream.
  Samples host;
  for (int i = 0; i < kPings; ++i) {
    if (!first) peer.expect("ping");
    const double start = now_ms();
    must(poke(region.address + 128, static_cast<std::uint64_t>(i)), "poke");
    peer.say("ping");
    if (first) {
      peer.expect("ping");
      host.add((now_ms() - start) * 1000 / 2);
    }
  }
  if (first) fact("kernel_sync_socket", "%s", host.text("us").c_str());

  Samples socket_only;
  for (int i = 0; i < kPings; ++i) {
    if (!first) peer.expect("ping");
    const double start = now_ms();
    peer.say("ping");
    if (first) {
      peer.expect("ping");
      socket_only.add((now_ms() - start) * 1000 / 2);
    }
  }
  if (first) fact("socket_alone", "%s", socket_only.text("us").c_str());

  Event own = nullptr, theirs = nullptr;
  IpcHandle handle{};
  must(cu.event_create(&own, kDisableTiming | kInterprocess), "cuEventCreate");
  must(cu.ipc_get_event(&handle, own), "cuIpcGetEventHandle");
  peer.say(std::string(handle.reserved, sizeof handle.reserved));
  std::memcpy(handle.reserved, peer.hear().text.data(), sizeof handle.reserved);
  must(cu.ipc_open_event(&theirs, handle), "cuIpcOpenEventHandle");
  const Stream stream = make_stream();
  Samples events;
  for (int i = 0; i < kPings; ++i) {
    const double start = now_ms();
    if (!first) {
      peer.expect("ping");
      must(cu.stream_wait_event(stream, theirs, 0), "cuStreamWaitEvent");
      must(cu.stream_sync(stream), "cuStreamSynchronize");
    }
    must(cu.event_record(own, stream), "cuEventRecord");
    peer.say("ping");
    if (first) {
      peer.expect("ping");
      must(cu.stream_wait_event(stream, theirs, 0), "cuStreamWaitEvent");
      must(cu.stream_sync(stream), "cuStreamSynchronize");
      events.add((now_ms() - start) * 1000 / 2);
    }
  }
  if (first) fact("ipc_event_and_socket", "%s", events.text("us").c_str());
  stream_pings(peer, region.address + (first ? 0 : 64), region.address + (first ? 64 : 0), 2000, first, words,
               "stream_to_stream_device_words");
  line.say("done");
  until_end(line);
}

}  // namespace

void t27_timeline() {
  const int fd = make_words_fd();
  const Words words(fd);
  Actor producer("producer", timeline_producer);
  Actor consumer("consumer", timeline_consumer);
  producer.line().say("words", {fd});
  Message published = producer.line().expect("published");
  consumer.line().say("words", {fd, published.fds.at(0)});
  consumer.line().expect("ready");
  consumer.line().say("rounds");  // waits are enqueued before or after the writes: both must do
  producer.line().say("rounds");
  producer.line().expect("enqueued");
  consumer.line().expect("rounds done");
  fact("word_seen_by_holder", "%llu", static_cast<unsigned long long>(words.load(kReady)));

  producer.line().say("long round");
  producer.line().expect("enqueued");
  consumer.line().say("long round");
  consumer.line().expect("waiting");
  sleep_ms(300);
  const double killed = now_ms();
  producer.kill();
  fact("producer_reaped_ms", "%.1f after SIGKILL with a write enqueued behind a 3 s kernel", now_ms() - killed);
  double late = -1;
  while (now_ms() - killed < settings.wait_ms) {
    if (words.load(kReady) != last_round() && late < 0) late = now_ms() - killed;
    sleep_ms(1);
  }
  if (late < 0) {
    fact("late_write", "none within %d ms, the word stays %llu", settings.wait_ms,
         static_cast<unsigned long long>(words.load(kReady)));
  } else {
    fact("late_write", "the dead producer's write landed after %.0f ms", late);
  }
  words.store(kReady, last_round() + 1 + kPoison);
  const double poisoned = now_ms();
  consumer.line().expect("awake");
  fact("poison_to_awake_ms", "%.3f", now_ms() - poisoned);
  consumer.finish();
}

void t27_event() {
  Actor producer("producer", [](const Line& line) {
    start_gpu();
    const Stream stream = make_stream();
    Event event = nullptr;
    must(cu.event_create(&event, kDisableTiming | kInterprocess), "cuEventCreate");
    IpcHandle handle{};
    must(cu.ipc_get_event(&handle, event), "cuIpcGetEventHandle");
    line.say(std::string(handle.reserved, sizeof handle.reserved));
    for (const std::uint64_t ns : {300'000'000ULL, 3'000'000'000ULL}) {
      line.expect("record");
      spin(ns, stream);
      must(cu.event_record(event, stream), "cuEventRecord");
      line.say("recorded");
    }
    until_end(line);
  });
  const Message handle = producer.line().hear();
  Actor consumer("consumer", [&](const Line& line) {
    start_gpu();
    const Stream stream = make_stream();
    IpcHandle opened{};
    std::memcpy(opened.reserved, handle.text.data(), sizeof opened.reserved);
    Event event = nullptr;
    must(cu.ipc_open_event(&event, opened), "cuIpcOpenEventHandle");
    for (const char* name : {"producer_alive", "producer_killed"}) {
      line.say("ready");
      line.expect("wait");
      const double start = now_ms();
      const Code waited = cu.stream_wait_event(stream, event, 0);
      line.say("waiting");
      Code code = waited;
      while (waited == kSuccess && (code = cu.stream_query(stream)) == kNotReady &&
             now_ms() - start < settings.wait_ms + 3000)
        sleep_ms(1);
      fact(name, "wait call %s, stream %s after %.0f ms", code_text(waited).c_str(), code_text(code).c_str(),
           now_ms() - start);
    }
    line.say("told");
    until_end(line);
  });
  for (const bool kill : {false, true}) {
    consumer.line().expect("ready");
    producer.line().say("record");
    producer.line().expect("recorded");
    consumer.line().say("wait");
    consumer.line().expect("waiting");
    if (!kill) continue;
    sleep_ms(300);
    producer.kill();
  }
  consumer.line().expect("told");
  const double start = now_ms();
  consumer.kill();  // its stream may still be waiting
  fact("waiter_reaped_ms", "%.1f", now_ms() - start);
}

void p7_latency() {
  const int fd = make_words_fd();
  const Words words(fd);
  // One stream against a polling CPU: the cost of one crossing of the bus each way.
  Actor alone("stream", [](const Line& line) {
    start_gpu();
    Message order = line.expect("words");
    Words own(order.fds.at(0));
    own.pin();
    const Stream stream = make_stream();
    for (std::uint64_t i = 1; i <= kPings; ++i) {
      must(cu.stream_wait64(stream, own.device(5), i, kWaitGeq), "cuStreamWaitValue64");
      must(cu.stream_write64(stream, own.device(6), i, 0), "cuStreamWriteValue64");
    }
    line.say("enqueued");
    must(cu.stream_sync(stream), "cuStreamSynchronize");
    until_end(line);
  });
  alone.line().say("words", {fd});
  alone.line().expect("enqueued");
  Samples trips;
  for (std::uint64_t i = 1; i <= kPings; ++i) {
    const double start = now_ms();
    words.store(5, i);
    while (words.load(6) < i) {
    }
    trips.add((now_ms() - start) * 1000);
  }
  alone.finish();
  fact("cpu_stream_cpu", "%s", trips.text("us").c_str());

  Actor a("first", [](const Line& line) { latency_side(line, true); });
  Actor b("second", [](const Line& line) { latency_side(line, false); });
  a.line().say("words", {fd});
  b.line().say("words", {fd});
  join(a, b);
  a.line().expect("done");
  b.line().expect("done");
  a.finish();
  b.finish();
}

}  // namespace shmb::facts
