// SPDX-License-Identifier: Apache-2.0
// The behaviour of torch.multiprocessing with CUDA tensors, in the form that the driver API allows: cases 51 to 69 of
// docs/conformance.md, by number. On the fake driver; order is proven by data, never by time.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "tests/cuda/meeting.hpp"

namespace cuda_tests {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

gpu::ImportOptions patient(gpu::Access access = gpu::Access::read_only) {
  gpu::ImportOptions options;
  options.access = access;
  options.wait = kPatience;
  return options;
}

// Nothing of this card is in use any more by anybody.
bool memory_is_back() {
  return eventually([] { return fakecuda::Fake::use().bytes_in_use(0) == 0; });
}

}  // namespace

TEST_CASE("51: a child writes through what it was sent, and the same region twice is the same memory") {
  const Meeting meeting;
  const Gate sent, written;
  auto parent = Child::run([&] {
    auto session = meeting.member();
    Worker worker;
    auto region = gpu::Region::allocate(session, 2 * kMiB);
    ACTOR_MUST(region.try_publish({.name = "x", .writing = true, .many_writers = true}));
    sent.open();
    ACTOR_CHECK(written.wait());
    ACTOR_CHECK(worker.all(region.pointer(), 2 * kMiB) == 4);
    return 0;
  });
  REQUIRE(sent.wait());
  CHECK(Child::run([&] {
          auto session = meeting.member();
          Worker worker;
          auto first = gpu::Region::try_import(session, std::string("x"), patient(gpu::Access::read_write));
          auto second = gpu::Region::try_import(session, std::string("x"), patient(gpu::Access::read_write));
          ACTOR_MUST(first);
          ACTOR_MUST(second);
          ACTOR_CHECK(first->id() == second->id());
          ACTOR_CHECK(worker.fill(first->pointer(), 2 * kMiB, 4) == 0);
          ACTOR_CHECK(worker.all(second->pointer(), 2 * kMiB) == 4);
          written.open();
          return 0;
        }).wait() == 0);
  CHECK(parent.wait() == 0);
}

TEST_CASE("52: five regions made, sent and dropped one after the other keep what they held") {
  const Meeting meeting;
  const Gate dropped;
  const Gate held;
  auto producer = Child::run([&] {
    auto session = meeting.member();
    Worker worker;
    for (int i = 0; i < 5; ++i) {
      auto region = gpu::Region::allocate(session, 2 * kMiB);
      ACTOR_CHECK(worker.fill(region.pointer(), 2 * kMiB, static_cast<unsigned char>(10 + i)) == 0);
      ACTOR_MUST(region.try_publish({.name = "t" + std::to_string(i)}));
    }  // each handle is gone before the next is made; the name holds it
    dropped.open();
    ACTOR_CHECK(held.wait());
    return 0;
  });
  REQUIRE(dropped.wait());
  CHECK(Child::run([&] {
          auto session = meeting.member();
          Worker worker;
          std::vector<gpu::Region> all;
          for (int i = 0; i < 5; ++i) {
            auto region = gpu::Region::try_import(session, "t" + std::to_string(i));
            ACTOR_MUST(region);
            all.push_back(std::move(*region));
          }
          held.open();
          for (int i = 0; i < 5; ++i)
            ACTOR_CHECK(worker.all(all[static_cast<std::size_t>(i)].pointer(), 2 * kMiB) == 10 + i);
          return 0;
        }).wait() == 0);
  CHECK(producer.wait() == 0);
}

TEST_CASE("53: two processes that exchange a state a hundred times do not block each other") {
  const Meeting meeting;
  const auto side = [&](bool first) {
    auto session = meeting.member();
    Worker worker;
    auto mine = gpu::Timeline::create(session, {.name = first ? "a" : "b"});
    auto region = gpu::Region::allocate(session, 2 * kMiB);
    ACTOR_MUST(region.try_publish({.name = first ? "of-a" : "of-b", .writing = true}));
    auto theirs = gpu::Timeline::try_open(session, first ? "b" : "a", kPatience);
    ACTOR_MUST(theirs);
    auto other = gpu::Region::try_import(session, std::string(first ? "of-b" : "of-a"), patient());
    ACTOR_MUST(other);
    for (std::uint64_t i = 1; i <= 100; ++i) {
      // The first begins each round, the second answers with what it read.
      if (!first) {
        ACTOR_MUST(theirs->try_wait(i, worker.stream(), 0, kPatience));
        ACTOR_CHECK(worker.copy_later(region.pointer(), other->pointer(), 4096) == 0);
      } else {
        ACTOR_CHECK(worker.fill_later(region.pointer(), 4096, static_cast<unsigned char>(i)) == 0);
      }
      ACTOR_MUST(mine.try_signal(i, worker.stream()));
      if (!first) continue;
      ACTOR_MUST(theirs->try_wait(i, worker.stream(), 0, kPatience));
      ACTOR_CHECK(worker.finish() == 0);
      ACTOR_CHECK(worker.all(other->pointer(), 4096) == static_cast<int>(i));
    }
    ACTOR_CHECK(worker.finish() == 0);
    ACTOR_MUST(theirs->try_wait_host(100, 0, kPatience));
    return 0;
  };
  auto a = Child::run([&] { return side(true); });
  auto b = Child::run([&] { return side(false); });
  CHECK(a.wait() == 0);
  CHECK(b.wait() == 0);
}

TEST_CASE("54: a hundred thousand tensors go through three processes and nothing is left") {
  const Meeting meeting;
  constexpr int kRegions = 100, kTensors = 1000;
  auto maker = Child::run([&] {
    auto session = meeting.member();
    Worker worker;
    for (int r = 0; r < kRegions; ++r) {
      auto region = gpu::Region::allocate(session, 2 * kMiB);
      std::vector<std::int64_t> values(kTensors);
      gpu::PublishOptions options;
      options.name = "made" + std::to_string(r);
      for (int t = 0; t < kTensors; ++t) {
        values[static_cast<std::size_t>(t)] = r * kTensors + t;
        gpu::Tensor tensor;
        tensor.name = "t" + std::to_string(t);
        tensor.type = {0, 64, 1};
        tensor.shape = {1};
        tensor.offset = static_cast<std::uint64_t>(t) * 8;
        options.tensors.push_back(tensor);
      }
      ACTOR_CHECK(worker.write(region.pointer(), values.data(), values.size() * 8) == 0);
      ACTOR_MUST(region.try_publish(options));
    }
    return 0;
  });
  auto forwarder = Child::run([&] {
    auto session = meeting.member();
    Worker worker;
    for (int r = 0; r < kRegions; ++r) {
      auto from = gpu::Region::try_import(session, "made" + std::to_string(r), patient());
      ACTOR_MUST(from);
      auto clone = gpu::Region::allocate(session, 2 * kMiB);
      ACTOR_CHECK(worker.copy_later(clone.pointer(), from->pointer(), 2 * kMiB) == 0);
      gpu::PublishOptions options;
      options.name = "sent" + std::to_string(r);
      options.sync = gpu::Sync::stream(worker.stream());
      for (std::size_t t = 0; t < from->tensor_count(); ++t) options.tensors.push_back(from->try_tensor(t).value());
      ACTOR_MUST(clone.try_publish(options));
      ACTOR_MUST(from->try_release(true));
    }
    return 0;
  });
  auto adder = Child::run([&] {
    auto session = meeting.member();
    Worker worker;
    std::int64_t sum = 0;
    for (int r = 0; r < kRegions; ++r) {
      auto from = gpu::Region::try_import(session, "sent" + std::to_string(r), patient());
      ACTOR_MUST(from);
      ACTOR_CHECK(from->tensor_count() == kTensors);
      std::vector<std::int64_t> values(kTensors);
      ACTOR_CHECK(worker.read(values.data(), from->pointer(), values.size() * 8) == 0);
      for (int t = 0; t < kTensors; ++t) {
        const auto tensor = from->try_tensor("t" + std::to_string(t));
        ACTOR_MUST(tensor);
        sum += values[tensor->offset / 8];
      }
      ACTOR_MUST(from->try_release(true));
    }
    constexpr std::int64_t n = kRegions * kTensors;
    ACTOR_CHECK(sum == n * (n - 1) / 2);
    return 0;
  });
  CHECK(maker.wait() == 0);
  CHECK(forwarder.wait() == 0);
  CHECK(adder.wait() == 0);
  CHECK(Child::run([] {
          ACTOR_CHECK(shmb::cuda::Driver::load().has_value());
          ACTOR_CHECK(memory_is_back());
          return 0;
        }).wait() == 0);
}

TEST_CASE("55: tensors alternating between two devices arrive on the right one") {
  const Meeting meeting;
  auto producer = Child::run([&] {
    auto session = meeting.member();
    for (int i = 0; i < 5; ++i) {
      Device device(i % 2);
      auto region = gpu::Region::allocate(session, 2 * kMiB, {.device = i % 2});
      ACTOR_CHECK(device.fill(region.pointer(), 2 * kMiB, static_cast<unsigned char>(i)) == 0);
      ACTOR_MUST(region.try_publish({.name = "d" + std::to_string(i)}));
    }
    return 0;
  });
  CHECK(producer.wait() == 0);
  CHECK(Child::run([&] {
          ::setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);  // other numbers, the same devices
          auto session = meeting.member();
          for (int i = 0; i < 5; ++i) {
            auto region = gpu::Region::try_import(session, "d" + std::to_string(i), patient());
            ACTOR_MUST(region);
            const int ordinal = 1 - i % 2;
            ACTOR_CHECK(region->info().device == ordinal);
            Device device(ordinal);
            ACTOR_CHECK(device.all(region->pointer(), 2 * kMiB) == i);
            ACTOR_MUST(region->try_release(true));
          }
          ACTOR_CHECK(memory_is_back());
          return 0;
        }).wait() == 0);
}

TEST_CASE("56: a forked child of a process that used the GPU gets a sentence, and its parent goes on") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member();
          Worker worker;
          auto region = gpu::Region::allocate(session, 2 * kMiB);
          ACTOR_CHECK(worker.fill(region.pointer(), 2 * kMiB, 1) == 0);
          const pid_t child = ::fork();
          if (child == 0) {
            const auto made = gpu::Region::try_allocate(session, 2 * kMiB);
            const bool told =
                status_of(made) == Status::forked_child && sentence_of(made).contains("CUDA does not survive a fork");
            ::_exit(told ? 0 : 1);
          }
          int status = -1;
          ACTOR_CHECK(::waitpid(child, &status, 0) == child && status == 0);
          ACTOR_MUST(region.try_publish({.name = "x"}));
          ACTOR_CHECK(worker.all(region.pointer(), 2 * kMiB) == 1);
          return 0;
        }).wait() == 0);
}

TEST_CASE("57 and 58: parts of one memory arrive each at its own offset and with its own type") {
  const Meeting meeting;
  const Gate sent, seen;
  auto producer = Child::run([&] {
    auto session = meeting.member();
    Worker worker;
    auto region = gpu::Region::allocate(session, 2 * kMiB);
    std::vector<unsigned char> bytes(2 * kMiB, 0);
    const float one = 1;
    for (std::size_t i = 0; i < 10; ++i) {
      std::memcpy(&bytes[i * 512], &one, sizeof one);
      bytes[i * 512 + 256] = static_cast<unsigned char>(i);
    }
    ACTOR_CHECK(worker.write(region.pointer(), bytes.data(), bytes.size()) == 0);
    gpu::PublishOptions options;
    options.name = "block";
    for (std::uint64_t i = 0; i < 10; ++i) {
      options.tensors.push_back({"f" + std::to_string(i), {2, 32, 1}, {1}, {}, i * 512});
      options.tensors.push_back({"b" + std::to_string(i), {1, 8, 1}, {1}, {}, i * 512 + 256});
    }
    ACTOR_MUST(region.try_publish(options));
    sent.open();
    ACTOR_CHECK(seen.wait());
    return 0;
  });
  REQUIRE(sent.wait());
  CHECK(Child::run([&] {
          auto session = meeting.member();
          Worker worker;
          auto block = gpu::Region::try_import(session, std::string("block"));
          ACTOR_MUST(block);
          for (int i = 0; i < 10; ++i) {
            const auto number = block->try_tensor("f" + std::to_string(i));
            const auto byte = block->try_tensor("b" + std::to_string(i));
            ACTOR_CHECK(number && byte && number->type.bits == 32 && byte->type.bits == 8);
            float value = 0;
            unsigned char small = 0;
            ACTOR_CHECK(worker.read(&value, block->pointer() + number->offset, sizeof value) == 0);
            ACTOR_CHECK(worker.read(&small, block->pointer() + byte->offset, sizeof small) == 0);
            ACTOR_CHECK(value == 1.0F && small == i);
          }
          seen.open();
          return 0;
        }).wait() == 0);
  CHECK(producer.wait() == 0);
}

TEST_CASE("59: a consumer's stream waits for the producer's late work, and the producer's for the answer") {
  const Meeting meeting;
  auto producer = Child::run([&] {
    ::setenv("FAKECUDA_DELAY_US", "20000", 1);
    auto session = meeting.member();
    Worker worker;
    auto mine = gpu::Timeline::create(session, {.name = "there"});
    auto region = gpu::Region::allocate(session, 2 * kMiB);
    ACTOR_MUST(region.try_publish({.name = "x", .writing = true, .many_writers = true}));
    auto theirs = gpu::Timeline::try_open(session, "back", kPatience);
    ACTOR_MUST(theirs);
    ACTOR_CHECK(worker.fill_later(region.pointer(), 4096, 2) == 0);
    ACTOR_MUST(mine.try_signal(1, worker.stream()));
    ACTOR_MUST(theirs->try_wait(1, worker.stream(), 0, kPatience));
    ACTOR_CHECK(worker.finish() == 0);
    ACTOR_CHECK(worker.all(region.pointer() + 4096, 4096) == 2);
    return 0;
  });
  auto consumer = Child::run([&] {
    auto session = meeting.member();
    Worker worker;
    auto mine = gpu::Timeline::create(session, {.name = "back"});
    auto theirs = gpu::Timeline::try_open(session, "there", kPatience);
    ACTOR_MUST(theirs);
    auto region = gpu::Region::try_import(session, std::string("x"), patient(gpu::Access::read_write));
    ACTOR_MUST(region);
    ACTOR_MUST(theirs->try_wait(1, worker.stream(), 0, kPatience));
    ACTOR_CHECK(worker.copy_later(region->pointer() + 4096, region->pointer(), 4096) == 0);
    ACTOR_MUST(mine.try_signal(1, worker.stream()));
    ACTOR_CHECK(worker.finish() == 0);
    return 0;
  });
  CHECK(producer.wait() == 0);
  CHECK(consumer.wait() == 0);
}

TEST_CASE(
    "60 to 62: a query says that it is not reached, a host wait ends when it is, from either side and any device") {
  const Meeting meeting;
  const Gate opened, reached;
  auto maker = Child::run([&] {
    auto session = meeting.member();
    Worker other(0), worker(1);  // the second is current now
    auto mine = gpu::Timeline::create(session, {.name = "t"});
    auto first_device = gpu::Timeline::create(session, {.name = "u"});
    ACTOR_CHECK(opened.wait());
    ACTOR_CHECK(mine.look().counter == 0);
    ACTOR_MUST(mine.try_signal(1, worker.stream()));
    ACTOR_MUST(first_device.try_signal(1, other.stream()));  // a stream of a device that is not current
    ACTOR_MUST(mine.try_wait_host(1, 0, kPatience));
    ACTOR_CHECK(reached.wait());
    return 0;
  });
  CHECK(Child::run([&] {
          auto session = meeting.member();
          auto theirs = gpu::Timeline::try_open(session, "t", kPatience);
          auto second = gpu::Timeline::try_open(session, "u", kPatience);
          ACTOR_MUST(theirs);
          ACTOR_MUST(second);
          ACTOR_CHECK(theirs->look().counter == 0);
          opened.open();
          ACTOR_MUST(theirs->try_wait_host(1, 0, kPatience));
          ACTOR_MUST(second->try_wait_host(1, 0, kPatience));
          ACTOR_CHECK(theirs->look().counter == 1);
          reached.open();
          return 0;
        }).wait() == 0);
  CHECK(maker.wait() == 0);
}

TEST_CASE("63: tensors without elements keep their shape") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member(), other = meeting.member();
          Worker worker;
          auto region = gpu::Region::allocate(session, 2 * kMiB);
          gpu::PublishOptions options;
          options.name = "x";
          options.tensors.push_back({"empty", {2, 32, 1}, {0, 5}, {}, 0});
          ACTOR_MUST(region.try_publish(options));
          auto seen = gpu::Region::try_import(other, std::string("x"));
          ACTOR_MUST(seen);
          const auto tensor = seen->try_tensor("empty");
          ACTOR_CHECK(tensor && tensor->shape == std::vector<std::int64_t>({0, 5}));
          return 0;
        }).wait() == 0);
}

TEST_CASE("65: the memory of a killed consumer's tensor goes back to the producer") {
  const Meeting meeting;
  const Gate sent, holding;
  auto producer = Child::run([&] {
    auto session = meeting.member();
    Worker worker;
    {
      auto region = gpu::Region::allocate(session, 2 * kMiB);
      ACTOR_MUST(region.try_publish({.name = "x"}));
      sent.open();
      ACTOR_CHECK(holding.wait());
      ACTOR_MUST(region.try_release(true));
    }
    ACTOR_CHECK(memory_is_back());  // once the consumer has been killed
    return 0;
  });
  REQUIRE(sent.wait());
  auto consumer = Child::run([&] {
    auto session = meeting.member();
    auto region = gpu::Region::try_import(session, std::string("x"));
    ACTOR_MUST(region);
    holding.open();
    ::pause();
    return 0;
  });
  REQUIRE(holding.wait());
  consumer.kill();
  CHECK(consumer.wait() == 128 + SIGKILL);
  CHECK(producer.wait() == 0);
}

TEST_CASE("66 and 67: a consumer goes on reading when the producer is killed, and hands the tensor on to a third") {
  const Meeting meeting;
  const Gate sent, held, killed, forwarded, done;
  auto producer = Child::run([&] {
    auto session = meeting.member();
    Worker worker;
    auto region = gpu::Region::allocate(session, 2 * kMiB);
    ACTOR_CHECK(worker.fill(region.pointer(), 2 * kMiB, 0x33) == 0);
    ACTOR_MUST(region.try_publish({.name = "x"}));
    sent.open();
    ::pause();
    return 0;
  });
  REQUIRE(sent.wait());
  const Note name;
  auto consumer = Child::run([&] {
    auto session = meeting.member();
    Worker worker;
    auto kept = gpu::Region::try_import(session, std::string("x"));
    ACTOR_MUST(kept);
    ACTOR_CHECK(status_of(kept->try_ticket()) == Status::denied);  // it was not asked for that
    gpu::ImportOptions to_hand_on;
    to_hand_on.share = true;
    auto region = gpu::Region::try_import(session, std::string("x"), to_hand_on);
    ACTOR_MUST(region);
    held.open();
    ACTOR_CHECK(killed.wait());
    ACTOR_CHECK(worker.all(region->pointer(), 2 * kMiB) == 0x33);
    const auto forwarded_by = region->try_ticket();
    ACTOR_MUST(forwarded_by);
    name.tell(*forwarded_by);
    ACTOR_CHECK(done.wait());
    return 0;
  });
  REQUIRE(held.wait());
  producer.kill();
  CHECK(producer.wait() == 128 + SIGKILL);
  killed.open();
  CHECK(Child::run([&] {
          auto session = connect(meeting.broker.socket());  // of another group
          Worker worker;
          auto region = gpu::Region::try_import(session, name.hear<shmbroker::Ticket>());
          ACTOR_MUST(region);
          ACTOR_CHECK(worker.all(region->pointer(), 2 * kMiB) == 0x33);
          done.open();
          return 0;
        }).wait() == 0);
  CHECK(consumer.wait() == 0);
}

TEST_CASE("68: a tensor that was sent and is never received does not hold device memory for ever") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member();
          Worker worker;
          {
            auto region = gpu::Region::allocate(session, 2 * kMiB);
            ACTOR_MUST(region.try_publish());
            const auto ticket =
                region.try_ticket(shmbroker::Rights::read, 1, shmbroker::Timeout(std::chrono::milliseconds(200)));
            ACTOR_MUST(ticket);
            region.release();
          }
          ACTOR_CHECK(memory_is_back());
          return 0;
        }).wait() == 0);
}

TEST_CASE("69: a process receives what it sent itself") {
  const Meeting meeting;
  CHECK(Child::run([&] {
          auto session = meeting.member();
          Worker worker;
          auto region = gpu::Region::allocate(session, 2 * kMiB);
          ACTOR_CHECK(worker.fill(region.pointer(), 2 * kMiB, 0x21) == 0);
          ACTOR_MUST(region.try_publish({.name = "x"}));
          auto again = gpu::Region::try_import(session, std::string("x"));
          ACTOR_MUST(again);
          ACTOR_CHECK(again->id() == region.id());
          ACTOR_CHECK(worker.all(again->pointer(), 2 * kMiB) == 0x21);
          return 0;
        }).wait() == 0);
}

}  // namespace cuda_tests
