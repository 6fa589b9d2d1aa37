// SPDX-License-Identifier: Apache-2.0
// GPU regions in the books: who keeps a GPU initialised, what may be published, who may open it, what the ends of
// processes make of it. The exports are memfds of the kind that the fake driver makes; the broker asks no driver.
#include "daemon/gpu/device.hpp"
#include "tests/daemon/books/gpu_client.hpp"

namespace shmb::daemon::test {

TEST_CASE("a GPU is named once: its node is opened elsewhere, and an event tells the end") {
  FakeGpus gpus;
  World world;
  Client client = world.silent();
  client.hello({.features = SHMBW_FEATURE_PASS_RIGHTS});
  const std::uint32_t before = world.status().descriptors;
  const auto asked = ask_device(client).fixed<shmbw_gpu_device_reply>();
  CHECK(asked.hold == SHMBW_GPU_HOLD_OPENING);
  CHECK(client.link().takes_many);
  const auto second = ask_device(client).fixed<shmbw_gpu_device_reply>();
  CHECK(second.watch != asked.watch);
  const auto event = await_device(world, client);
  CHECK(event.watch == asked.watch);
  CHECK(event.hold == SHMBW_GPU_HOLD_NODE);
  CHECK(event.minor == 3);
  CHECK(await_device(world, client).watch == second.watch);
  CHECK(world.holds_descriptors(before + 1));
  const auto again = ask_device(client).fixed<shmbw_gpu_device_reply>();
  CHECK(again.watch == 0);
  CHECK(again.hold == SHMBW_GPU_HOLD_NODE);
  // Another session's look finds the same node: it is held once.
  Client other = gpu_client(world);
  CHECK(world.holds_descriptors(before + 2 + 1));
  other.close();
  client.close();
  CHECK(world.holds_descriptors(before - 2));
}

TEST_CASE("where the broker cannot open the node it says what failed, and takes an open of the client's") {
  FakeGpus gpus;
  World world;
  Client client = world.silent();
  client.hello({.features = SHMBW_FEATURE_PASS_RIGHTS});
  std::string text;
  ask_device(client, gpu_uuid(), "0000:66:00.0");
  auto event = await_device(world, client, &text);
  CHECK(event.hold == SHMBW_GPU_HOLD_FAILED);
  CHECK(event.system_errno == ENOENT);
  CHECK(text.find("0000:66:00.0") != text.npos);
  std::filesystem::remove(gpus.file("fake-nvidia3"));
  ask_device(client);
  event = await_device(world, client, &text);
  CHECK(event.hold == SHMBW_GPU_HOLD_FAILED);
  CHECK(text.find("fake-nvidia3") != text.npos);
  CHECK(publish(client).status == Status::device_not_pinned);

  client.link().bring(std::move(*sys::memfd_create("fakecuda:no node", false)));
  CHECK(ask_device(client).status() == Status::bad_fd);
  std::ofstream(gpus.file("fake-nvidia3")) << "node";
  const Fd node = gpus.node();
  client.link().bring(Fd::adopt(::open(gpus.file("fake-nvidia3").c_str(), O_PATH | O_CLOEXEC)));
  CHECK(ask_device(client).status() == Status::bad_fd);
  client.link().bring(copy_of(node));
  const auto given = ask_device(client).fixed<shmbw_gpu_device_reply>();
  CHECK(given.hold == SHMBW_GPU_HOLD_GIVEN);
  CHECK(given.minor == 3);
  CHECK(publish(client).status == Status::ok);
  CHECK(gpu_rows(client).at(0).hold == SHMBW_GPU_HOLD_GIVEN);
  // No given node replaces one that the broker has opened itself.
  Client other = gpu_client(world);
  std::ofstream(gpus.file("fake-nvidia4")) << "node";
  other.link().bring(Fd::adopt(::open(gpus.file("fake-nvidia4").c_str(), O_RDWR | O_CLOEXEC)));
  const auto kept = ask_device(other).fixed<shmbw_gpu_device_reply>();
  CHECK(kept.hold == SHMBW_GPU_HOLD_NODE);
  CHECK(kept.minor == 3);
}

TEST_CASE("the user that gives a GPU's node pays for it until the last region on that GPU has gone") {
  FakeGpus gpus;
  Config config = private_config();
  config.limits.uid_gpu_descriptors = 4;
  World world(config);
  const Fd node = gpus.node();
  auto give = [&](Client& client) -> Packet& {
    client.link().bring(copy_of(node));
    return ask_device(client);
  };
  auto giver = [&](std::uint32_t uid) {
    Client client = world.silent(uid);
    client.hello({.features = SHMBW_FEATURE_PASS_RIGHTS});
    return client;
  };
  Client first = giver(1000), second = giver(1000), third = giver(1000), stranger = giver(2000);
  Client reader = world.client(1000);
  CHECK(give(first).fixed<shmbw_gpu_device_reply>().hold == SHMBW_GPU_HOLD_GIVEN);
  const auto made = publish(first);  // two more
  REQUIRE(made.status == Status::ok);
  CHECK(open_id(reader, made.reply.region).status == Status::ok);
  CHECK(give(second).fixed<shmbw_gpu_device_reply>().hold == SHMBW_GPU_HOLD_GIVEN);
  const std::uint32_t before = world.status().descriptors;
  for (int i = 0; i < 3; ++i) {
    Packet& refused = give(third);
    REQUIRE(refused.status() == Status::limit);
    const Error why = refused.error();
    CHECK(why.shortage.slot == SHMBW_SLOT_GPU_DESCRIPTORS);
    CHECK(why.sentence.find("asked 1, used 4 of 4; raise limits.uid.1000.gpu_descriptors") != std::string::npos);
  }
  CHECK(world.holds_descriptors(before));
  CHECK(give(stranger).status() == Status::ok);
  // The region keeps the node although its giver has gone.
  first.die();
  CHECK(give(third).status() == Status::limit);
  reader.release(made.reply.region);
  world.wait_for_closes();
  CHECK(give(third).status() == Status::ok);
  CHECK(publish(third).status == Status::ok);
}

TEST_CASE("an administrator may trust that another process keeps GPUs initialised") {
  FakeGpus gpus;
  std::filesystem::remove(gpus.file("fake-nvidia3"));
  Config config = private_config();
  config.gpu_trust = true;
  World world(config);
  Client client = world.silent();
  client.hello({.features = SHMBW_FEATURE_PASS_RIGHTS});
  ask_device(client);
  CHECK(await_device(world, client).hold == SHMBW_GPU_HOLD_TRUSTED);
  CHECK(publish(client).status == Status::ok);
}

TEST_CASE("a session that has not asked to pass descriptors names no GPU") {
  FakeGpus gpus;
  World world;
  Client client = world.client();
  CHECK(ask_device(client).status() == Status::invalid);
}

TEST_CASE("a session that ends while its GPU is looked at leaves nothing") {
  FakeGpus gpus;
  World world;
  {
    Client client = world.silent();
    client.hello({.features = SHMBW_FEATURE_PASS_RIGHTS});
    ask_device(client);
  }
  Client other = gpu_client(world);  // its look comes after the first one's
  CHECK(publish(other).status == Status::ok);
}

TEST_CASE("a consumer gets the share and never the keeper, by id, by name and by ticket, also another user") {
  FakeGpus gpus;
  World world(system_config());
  Client producer = gpu_client(world), consumer = world.client(), stranger = world.client(1001);
  producer.make_group({.name = "job"});
  producer.join("job");
  consumer.join("job");
  Export made;
  const auto published = publish(producer, {.name = "kv", .bytes = 3 << 20, .allocation = 4 << 20}, &made);
  REQUIRE(published.status == Status::ok);
  CHECK(published.reply.state == SHMBW_GPU_STATE_OK);
  CHECK((published.reply.rights & SHMBW_RIGHT_MAP_WRITE) == 0);

  Packet* packet = nullptr;
  const auto opened = open_id(consumer, published.reply.region, kRead, &packet);
  REQUIRE(opened.status == Status::ok);
  REQUIRE(packet->fds.size() == 1);
  CHECK(sys::same_open_file(packet->fds[0].get(), made.share.get()).value());
  CHECK_FALSE(sys::same_open_file(packet->fds[0].get(), made.keeper.get()).value());
  CHECK(opened.reply.bytes == 3 << 20);
  CHECK(std::ranges::equal(opened.reply.uuid, gpu_uuid()));
  CHECK(opened.reply.chunks == 1);
  CHECK(opened.reply.sent == 1);
  CHECK(open_name(consumer, "kv").status == Status::ok);

  CHECK(open_id(stranger, published.reply.region).status == Status::not_found);
  const auto ticket = Client::ticket_of(producer.ticket(published.reply.region));
  shmbw_gpu_open wish{};
  wish.by = SHMBW_ATTACH_BY_TICKET;
  wish.rights = kRead;
  std::ranges::copy(ticket, wish.ticket);
  auto by_ticket = answer_of<shmbw_gpu_open_reply>(stranger.batch<shmbw_gpu_open>(SHMBW_OP_GPU_OPEN, {wish}));
  CHECK(by_ticket.status == Status::ok);
  const auto row = gpu_rows(consumer).at(0);
  CHECK(row.importers == 2);
  CHECK(row.exporter == 1);
  CHECK(row.minor == 3);
}

TEST_CASE("the region outlives its producer, and its bytes come back with the last consumer") {
  FakeGpus gpus;
  World world;
  Client consumer = world.client();
  consumer.make_group({.name = "job"});
  consumer.join("job");
  Client producer = gpu_client(world);
  producer.join("job");
  const auto published = publish(producer, {.name = "weights"});
  REQUIRE(published.status == Status::ok);
  const std::uint32_t with = world.status().descriptors;
  CHECK(open_id(consumer, published.reply.region, kRead | SHMBW_RIGHT_RELEASE).status == Status::ok);
  producer.die();
  CHECK(open_name(consumer, "weights").status == Status::ok);
  CHECK(states_told(consumer).empty());  // what was whole stays whole
  CHECK(gpu_rows(consumer).at(0).exporter == 0);
  CHECK(gpu_rows(consumer).at(0).hold == SHMBW_GPU_HOLD_NODE);
  CHECK(consumer.release(published.reply.region, 0, SHMBW_RELEASE_UNNAME).status == Status::ok);
  world.wait_for_closes();
  CHECK(gpu_rows(consumer).empty());
  CHECK(world.status().descriptors < with);
}

TEST_CASE("a weight cache is kept beyond its group, and its name is shared with host regions") {
  FakeGpus gpus;
  World world;
  {
    Client loader = gpu_client(world);
    loader.make_group({.name = "cache"});
    loader.join("cache");
    CHECK(loader.create({.name = "taken"}).status == Status::ok);
    CHECK(publish(loader, {.name = "taken"}).status == Status::exists);
    const auto replaced = publish(loader, {.name = "taken", .flags = SHMBW_GPU_PUBLISH_REPLACE});
    CHECK(replaced.reply.region.generation == 2);
    CHECK(publish(loader, {.name = "w", .flags = SHMBW_GPU_PUBLISH_KEEP_GIVEN, .keep = kMinute}).status == Status::ok);
    loader.die();
  }
  Client next = gpu_client(world);
  next.join("cache");
  CHECK(open_name(next, "w").status == Status::ok);
  CHECK(open_name(next, "taken").status == Status::not_found);
}

TEST_CASE("descriptors that are no pair of exports are refused, by the chunk and the side that is wrong") {
  FakeGpus gpus;
  World world;
  Client client = gpu_client(world);
  auto send = [&](Fd keeper, Fd share) {
    client.link().bring(std::move(keeper));
    client.link().bring(std::move(share));
    const GpuRequest wish{};
    return answer_of<shmbw_gpu_publish_reply>(
        client.batch<shmbw_gpu_publish>(SHMBW_OP_GPU_PUBLISH, {publish_of(wish)}));
  };
  const Export good, other("no export");
  auto junk = [] { return Fd::adopt(::open("/dev/null", O_RDWR | O_CLOEXEC)); };
  CHECK(send(junk(), copy_of(good.share)).error.sentence.find("the keeper is no export") != std::string::npos);
  CHECK(send(copy_of(good.keeper), junk()).error.sentence.find("the share is no export") != std::string::npos);
  CHECK(send(copy_of(other.keeper), copy_of(other.share)).status == Status::bad_fd);
  const std::string path = "/proc/self/fd/" + std::to_string(good.share.get());
  CHECK(send(copy_of(good.keeper), Fd::adopt(::open(path.c_str(), O_PATH | O_CLOEXEC))).status == Status::bad_fd);
  const auto dup = send(copy_of(good.keeper), copy_of(good.keeper));
  CHECK(dup.status == Status::bad_fd);
  CHECK(dup.error.sentence.find("one open file") != std::string::npos);
  CHECK(send(copy_of(good.keeper), copy_of(good.share)).status == Status::ok);
  CHECK(gpu_rows(client).size() == 1);
}

TEST_CASE("a broker without kcmp and without Linux 6.10 still tells an export twice from a copy") {
  FakeGpus gpus;
  World world;
  Client client = gpu_client(world);
  fault::pretend_kernel(5, 15);
  fault::inject(fault::Call::kcmp, EPERM);
  const Export good;
  auto send = [&](Fd share) {
    client.link().bring(copy_of(good.keeper));
    client.link().bring(std::move(share));
    const GpuRequest wish{};
    return answer_of<shmbw_gpu_publish_reply>(
        client.batch<shmbw_gpu_publish>(SHMBW_OP_GPU_PUBLISH, {publish_of(wish)}));
  };
  CHECK(send(copy_of(good.keeper)).error.sentence.find("one open file") != std::string::npos);
  CHECK(send(copy_of(good.share)).status == Status::ok);
  fault::clear();
  fault::pretend_kernel(0, 0);
}

TEST_CASE("wrong words of a publication are refused with what is wrong") {
  FakeGpus gpus;
  World world;
  Client client = gpu_client(world);
  auto status = [&](const GpuRequest& wish) { return publish(client, wish).status; };
  CHECK(status({.bytes = 0}) == Status::invalid);
  CHECK(status({.bytes = 1ULL << 50}) == Status::invalid);
  CHECK(status({.bytes = 4 << 20, .chunk_bytes = 3 << 20}) == Status::invalid);
  CHECK(status({.bytes = 3 << 20}) == Status::invalid);  // nobody could map it
  CHECK(status({.bytes = 1ULL << 46, .granularity = 1ULL << 46}) == Status::invalid);
  CHECK(status({.bytes = 4 << 20, .offset = 1 << 20, .allocation = 4 << 20}) == Status::invalid);
  CHECK(status({.flags = SHMBW_GPU_PUBLISH_MANY_WRITERS}) == Status::invalid);
  CHECK(status({.flags = SHMBW_GPU_PUBLISH_REPLACE}) == Status::invalid);
  CHECK(status({.keep = 5}) == Status::invalid);
  CHECK(status({.flags = SHMBW_GPU_PUBLISH_KEEP_GIVEN, .keep = kMinute}) == Status::invalid);  // without a name
  CHECK(status({.flags = 1 << 20}) == Status::unknown_flags);
  CHECK(status({.rights = SHMBW_RIGHT_SHARE}) == Status::invalid);
  CHECK(status({.manifest_bytes = 5}) == Status::invalid);
  CHECK(status({.kind = SHMBW_GPU_KIND_TIMELINE}) == Status::invalid);
  CHECK(status({.name = ".hidden"}) == Status::invalid);
  CHECK(status({.chunks = 2}) == Status::invalid);
  CHECK(status({.uuid = gpu_uuid(9)}) == Status::device_not_pinned);
  CHECK(status({.bytes = 3 << 20, .offset = 1 << 20, .allocation = 4 << 20}) == Status::ok);
}

TEST_CASE("descriptors that the request does not state drop the peer, and so do those that are missing") {
  FakeGpus gpus;
  World world;
  Client client = gpu_client(world);
  auto send = [&](std::size_t fds) {
    for (std::size_t i = 0; i < fds; ++i) client.link().bring(std::move(*sys::memfd_create("fakecuda:stray", false)));
    std::vector<std::byte> buffer(SHMBW_MAX_MESSAGE);
    wire::Writer out(buffer);
    out.begin_batch<shmbw_gpu_publish>(SHMBW_OP_GPU_PUBLISH, 7, 1);
    out.element(0, publish_of({}));
    client.send_only(out.finish(fds));
    return std::exchange(client.link().dropped, {});
  };
  CHECK(send(0) != "");
  CHECK(send(1) != "");
  CHECK(send(3) != "");
  CHECK(send(2) == "");
}

TEST_CASE("a limit on GPU bytes refuses with numbers, holders and the key to raise, and host bytes do not count") {
  FakeGpus gpus;
  Config config = private_config();
  config.limits.uid_gpu_bytes = 14 << 20;
  config.limits.uid_gpu_descriptors = 6;
  config.limits.group_bytes = 1 << 20;
  World world(config);
  Client client = gpu_client(world);
  CHECK(publish(client, {.bytes = 8 << 20}).status == Status::ok);
  const auto refused = publish(client, {.bytes = 8 << 20});
  CHECK(refused.status == Status::limit);
  CHECK(refused.error.shortage.slot == SHMBW_SLOT_GPU_BYTES);
  CHECK(refused.error.shortage.used == 8 << 20);
  CHECK(refused.error.sentence.find("limits.uid.1000.gpu_bytes") != std::string::npos);
  CHECK(publish(client, {.bytes = 1 << 20, .allocation = 2 << 20}).status == Status::ok);
  CHECK(publish(client, {.bytes = 4096, .allocation = 2 << 20}).status == Status::ok);
  CHECK(publish(client, {.bytes = 4096, .allocation = 2 << 20}).error.shortage.slot == SHMBW_SLOT_GPU_DESCRIPTORS);
  CHECK(world.status().bytes == 0);
}

TEST_CASE("a region of many chunks comes and goes in several packets, and is not there before it is whole") {
  FakeGpus gpus;
  World world;
  Client client = gpu_client(world), other = world.client();
  const GpuRequest wish{.name = "big", .bytes = 600ULL << 20, .chunk_bytes = 2 << 20, .chunks = 126};
  const auto published = publish(client, wish);
  REQUIRE(published.status == Status::ok);
  CHECK(published.reply.state == SHMBW_GPU_STATE_INCOMPLETE);
  CHECK(published.reply.chunks == 300);
  CHECK(open_id(other, published.reply.region).status == Status::not_ready);
  auto more = [&](std::uint32_t first, std::uint32_t count) -> Packet& {
    for (std::uint32_t i = 0; i < count; ++i) {
      const Export fresh;
      client.link().bring(copy_of(fresh.keeper));
      client.link().bring(copy_of(fresh.share));
    }
    return client.call(SHMBW_OP_GPU_CHUNKS, shmbw_gpu_chunks{published.reply.region, first, count});
  };
  CHECK(more(100, 2).status() == Status::invalid);
  CHECK(more(126, 126).fixed<shmbw_gpu_chunks_reply>().state == SHMBW_GPU_STATE_INCOMPLETE);
  CHECK(more(252, 49).status() == Status::invalid);
  CHECK(more(252, 48).fixed<shmbw_gpu_chunks_reply>().state == SHMBW_GPU_STATE_OK);
  CHECK(more(300, 1).status() == Status::invalid);

  Packet* packet = nullptr;
  const auto opened = open_id(other, published.reply.region, kRead, &packet);
  REQUIRE(opened.status == Status::ok);
  CHECK(opened.reply.sent == 253);
  CHECK(packet->fds.size() == 253);
  Packet& rest = other.call(SHMBW_OP_GPU_MORE, shmbw_gpu_more{published.reply.region, 253, 47});
  CHECK(rest.fixed<shmbw_gpu_more_reply>().count == 47);
  CHECK(rest.fds.size() == 47);
  CHECK(other.call(SHMBW_OP_GPU_MORE, shmbw_gpu_more{published.reply.region, 253, 48}).status() == Status::invalid);
}

TEST_CASE("a publisher that dies before the region is whole leaves one that no session can open") {
  FakeGpus gpus;
  World world;
  Client client = gpu_client(world);
  const auto published = publish(client, {.name = "half", .bytes = 8 << 20, .chunk_bytes = 4 << 20});
  CHECK(published.reply.state == SHMBW_GPU_STATE_INCOMPLETE);
  Client other = world.client();
  client.die();
  CHECK(open_id(other, published.reply.region).status == Status::not_found);
}

TEST_CASE("a batch answers for each publication alone, and its descriptors stay in step") {
  FakeGpus gpus;
  World world;
  Client client = gpu_client(world);
  std::vector<shmbw_gpu_publish> wishes = {publish_of({}), publish_of({.bytes = 0}), publish_of({})};
  Export last;
  for (int i = 0; i < 3; ++i) {
    last = Export();
    client.link().bring(copy_of(last.keeper));
    client.link().bring(copy_of(last.share));
  }
  Packet& packet = client.batch(SHMBW_OP_GPU_PUBLISH, wishes);
  CHECK(answer_of<shmbw_gpu_publish_reply>(packet, 0).status == Status::ok);
  CHECK(answer_of<shmbw_gpu_publish_reply>(packet, 1).status == Status::invalid);
  const auto third = answer_of<shmbw_gpu_publish_reply>(packet, 2);
  REQUIRE(third.status == Status::ok);
  Packet* opened = nullptr;
  open_id(client, third.reply.region, kRead, &opened);
  REQUIRE(opened->fds.size() == 1);
  CHECK(sys::same_open_file(opened->fds[0].get(), last.share.get()).value());
}

TEST_CASE("a manifest is a sealed memfd that travels unread") {
  FakeGpus gpus;
  World world;
  Client client = gpu_client(world);
  const std::string text = "a manifest";
  auto send = [&](Fd manifest, std::uint64_t bytes) {
    const Export fresh;
    client.link().bring(copy_of(fresh.keeper));
    client.link().bring(copy_of(fresh.share));
    client.link().bring(std::move(manifest));
    return answer_of<shmbw_gpu_publish_reply>(client.batch<shmbw_gpu_publish>(
        SHMBW_OP_GPU_PUBLISH, {publish_of({.manifest_bytes = bytes, .flags = SHMBW_GPU_PUBLISH_MANIFEST})}));
  };
  CHECK(send(support::manifest(text, 0), text.size()).status == Status::bad_fd);
  CHECK(send(support::manifest(text), text.size() + 1).status == Status::invalid);
  CHECK(send(Fd::adopt(::open("/dev/null", O_RDWR | O_CLOEXEC)), 5).status == Status::bad_fd);
  CHECK(send(support::manifest(text), 5 << 20).status == Status::invalid);
  const auto published = send(support::manifest(text), text.size());
  REQUIRE(published.status == Status::ok);
  CHECK(world.status().bytes == 4096);
  Packet* packet = nullptr;
  const auto opened = open_id(client, published.reply.region, kRead, &packet);
  CHECK(opened.reply.manifest_bytes == text.size());
  REQUIRE(opened.reply.manifest_fd == 1);
  char read[32] = {};
  CHECK(::pread(packet->fds[1].get(), read, sizeof read, 0) == static_cast<ssize_t>(text.size()));
  CHECK(text == read);
  CHECK((::fcntl(packet->fds[1].get(), F_GETFL) & O_ACCMODE) == O_RDONLY);
}

TEST_CASE("a writer that dies poisons what it could still write, and what it gave up it does not") {
  FakeGpus gpus;
  World world;
  Client reader = world.client(), writer = gpu_client(world);
  const auto whole = publish(writer, {.flags = SHMBW_GPU_PUBLISH_WRITING});
  const auto half = publish(writer, {.flags = SHMBW_GPU_PUBLISH_WRITING | SHMBW_GPU_PUBLISH_MANY_WRITERS});
  CHECK((half.reply.rights & SHMBW_RIGHT_MAP_WRITE) != 0);
  CHECK(open_id(reader, whole.reply.region).status == Status::ok);
  CHECK(open_id(reader, half.reply.region).status == Status::ok);
  CHECK(open_id(reader, whole.reply.region, kWrite).status == Status::write_closed);
  CHECK(report(writer, whole.reply.region, SHMBW_GPU_FINDING_WRITTEN).status == Status::ok);
  CHECK(report(writer, whole.reply.region, SHMBW_GPU_FINDING_WRITTEN).status == Status::denied);
  writer.die();
  CHECK(states_told(reader) == States{SHMBW_GPU_STATE_POISONED});
  const auto refused = open_id(reader, half.reply.region, kWrite);
  CHECK(refused.status == Status::region_poisoned);
  CHECK(open_id(reader, half.reply.region).reply.state == SHMBW_GPU_STATE_POISONED);
  CHECK(open_id(reader, whole.reply.region).reply.state == SHMBW_GPU_STATE_OK);
}

TEST_CASE("a release is no death") {
  FakeGpus gpus;
  World world;
  Client reader = world.client(), writer = gpu_client(world);
  const auto made = publish(writer, {.flags = SHMBW_GPU_PUBLISH_WRITING | SHMBW_GPU_PUBLISH_MANY_WRITERS});
  CHECK(open_id(reader, made.reply.region, kWrite).status == Status::ok);
  CHECK(writer.release(made.reply.region).status == Status::ok);
  writer.die();
  CHECK(states_told(reader).empty());
  CHECK(open_id(reader, made.reply.region).reply.state == SHMBW_GPU_STATE_OK);
}

TEST_CASE("a watcher of a region gets its states, with the number of the watch") {
  FakeGpus gpus;
  World world;
  Client watcher = world.client(), writer = gpu_client(world);
  const auto made = publish(writer, {.name = "w", .flags = SHMBW_GPU_PUBLISH_WRITING});
  const auto reply = watcher.watch_region(made.reply.region, SHMBW_WATCH_EVENT_GPU).fixed<shmbw_watch_reply>();
  Client reader = world.client();
  open_id(reader, made.reply.region);
  writer.die();
  REQUIRE(watcher.link().events.size() == 1);
  CHECK(watcher.link().events[0].fixed<shmbw_gpu_state_event>().watch == reply.watch);
  CHECK(watcher.link().events[0].fixed<shmbw_gpu_state_event>().state == SHMBW_GPU_STATE_POISONED);
}

TEST_CASE("a GPU region is ready when it is published, without a wait for its writers' mappings") {
  FakeGpus gpus;
  World world;
  Client watcher = world.client(), writer = gpu_client(world), second = world.client();
  const auto made = publish(writer, {.flags = SHMBW_GPU_PUBLISH_WRITING | SHMBW_GPU_PUBLISH_MANY_WRITERS});
  const auto ready = [&] {
    const std::uint32_t events = SHMBW_WATCH_EVENT_READY | SHMBW_WATCH_EVENT_PUBLISHED;
    return watcher.watch_region(made.reply.region, events).fixed<shmbw_watch_reply>().state == SHMBW_WATCH_EVENT_READY;
  };
  CHECK(ready());
  CHECK(open_id(second, made.reply.region, kWrite).status == Status::ok);
  CHECK(ready());
}

TEST_CASE("a failed import is its importer's own: the region stays usable, and no other session is notified") {
  FakeGpus gpus;
  World world;
  Client publisher = gpu_client(world), victim = world.client(), other = world.client();
  const auto made = publish(publisher, {.name = "w"});
  open_id(victim, made.reply.region);
  CHECK(report(victim, made.reply.region, SHMBW_GPU_FINDING_IMPORT_FAILED, 304).reply.state == SHMBW_GPU_STATE_OK);
  CHECK(report(victim, made.reply.region, SHMBW_GPU_FINDING_IMPORTED).reply.state == SHMBW_GPU_STATE_OK);
  CHECK(states_told(publisher).empty());
  CHECK(gpu_rows(publisher).at(0).code == 0);
  CHECK(open_id(other, made.reply.region).status == Status::ok);
}

TEST_CASE("a lost device costs the regions of the user that reports it, and no other's") {
  FakeGpus gpus;
  World world(system_config());
  Client mine = gpu_client(world), theirs = gpu_client(world, 1001);
  const auto lost = publish(mine), kept = publish(theirs);
  CHECK(report(mine, {}, SHMBW_GPU_FINDING_DEVICE_LOST, 46).reply.regions == 1);
  CHECK(states_told(mine) == States{SHMBW_GPU_STATE_DEVICE_LOST});
  CHECK(open_id(mine, lost.reply.region).status == Status::device_lost);
  CHECK(open_id(theirs, kept.reply.region).status == Status::ok);
  CHECK(gpu_rows(mine).at(0).code == 46);
}

TEST_CASE("a process that only closed its socket still maps the memory: it stays charged until the process ends") {
  FakeGpus gpus;
  World world;
  Client producer = gpu_client(world), consumer = world.client(), asker = world.client();
  const auto made = publish(producer, {.name = "w"});
  CHECK(open_id(consumer, made.reply.region).status == Status::ok);
  CHECK(open_id(asker, made.reply.region).status == Status::ok);
  consumer.end_of_file();
  CHECK(world.books->awaits_end(*consumer.session()));
  CHECK(gpu_rows(asker).at(0).leaving == 1);
  CHECK(gpu_rows(asker).at(0).importers == 2);
  producer.release(made.reply.region, 0, SHMBW_RELEASE_UNNAME);
  CHECK(gpu_rows(asker).at(0).state == SHMBW_GPU_STATE_OK);
  const std::uint32_t before = world.status().descriptors;
  asker.release(made.reply.region);
  REQUIRE(gpu_rows(asker).size() == 1);  // nobody can reach it, and its bytes are used
  CHECK(gpu_rows(asker).at(0).state == SHMBW_GPU_STATE_DETACHED);
  CHECK(gpu_rows(asker).at(0).bytes == 4 << 20);
  CHECK(world.holds_descriptors(before - 2));
  CHECK(open_id(asker, made.reply.region).status == Status::detached);
  world.books->process_ended(*consumer.session());
  CHECK(gpu_rows(asker).empty());
  consumer.forget();
}

TEST_CASE("one reclaim lists all that a killed process leaves, with its GPU regions") {
  FakeGpus gpus;
  World world;
  Client client = gpu_client(world);
  publish(client);
  publish(client);
  client.end_of_file();
  world.books->process_ended(*client.session());
  world.books->process_died(*client.session(), nullptr);
  client.forget();
  world.wait_for_closes();
  bool told = false;
  for (const std::string& line : world.log)
    told = told || line.find("2 regions, 8.0 MiB freed, 8.0 MiB of it on GPUs") != line.npos;
  CHECK(told);
}

TEST_CASE("a killed process holds no GPU memory, though a child forked from it holds its socket") {
  FakeGpus gpus;
  World world;
  Client owner = gpu_client(world), user = world.client();
  const auto made = publish(owner, {.kind = SHMBW_GPU_KIND_LEGACY});
  const auto kept = publish(owner);
  open_id(user, made.reply.region);
  open_id(user, kept.reply.region);
  const auto host = user.create();
  user.ready(host.ref());
  owner.batch<shmbw_gpu_retire>(SHMBW_OP_GPU_RETIRE, {{made.reply.region}});
  owner.link().events.clear();
  world.books->process_died(*user.session(), nullptr);
  REQUIRE(owner.link().events.size() == 1);
  CHECK(owner.link().events[0].op() == (SHMBW_EVENT | SHMBW_EVENT_GPU_DRAINED));
  CHECK(gpu_rows(owner).at(0).importers == 0);
  CHECK(user.attach_id(host.ref()).status == Status::ok);  // what the child may still map is not taken away
}

TEST_CASE("more requests than a session can want are not kept while a GPU is looked at") {
  FakeGpus gpus;
  World world;
  Client client = world.silent();
  client.hello({.features = SHMBW_FEATURE_PASS_RIGHTS});
  for (std::size_t i = 0; i < kWatchesOfDevice; ++i)
    REQUIRE(ask_device(client).fixed<shmbw_gpu_device_reply>().hold == SHMBW_GPU_HOLD_OPENING);
  CHECK(ask_device(client).status() == Status::busy);
  CHECK(await_device(world, client).hold == SHMBW_GPU_HOLD_NODE);
  CHECK(ask_device(client).fixed<shmbw_gpu_device_reply>().hold == SHMBW_GPU_HOLD_NODE);
}

TEST_CASE("host regions and GPU regions are not taken for each other") {
  FakeGpus gpus;
  World world;
  Client client = gpu_client(world);
  const auto gpu = publish(client);
  const auto host = client.create();
  CHECK(client.attach_id(gpu.reply.region).status == Status::other_kind);
  CHECK(open_id(client, host.ref()).status == Status::other_kind);
  CHECK(client.publish(gpu.reply.region).status() == Status::other_kind);
  CHECK(report(client, host.ref(), SHMBW_GPU_FINDING_IMPORTED).status == Status::other_kind);
  auto stale = gpu.reply.region;
  stale.generation = 7;
  CHECK(open_id(client, stale).status == Status::generation_mismatch);
  CHECK(report(client, stale, SHMBW_GPU_FINDING_IMPORTED).status == Status::generation_mismatch);

  Client child = world.silent();
  child.hello({.fork_session = client.id, .fork_secret = client.secret});
  CHECK(child.inherit(gpu.reply.region).status == Status::forked_child);
  CHECK(child.inherit(host.ref()).status == Status::ok);
}

TEST_CASE("a region that is registered with a GPU is neither published nor recycled") {
  World world;
  Client client = world.client();
  const auto region = client.create({.length = 4 << 20});
  client.ready(region.ref());
  auto pin = [&](std::uint32_t flags) {
    return answer_of<shmbw_gpu_pinned_reply>(
        client.batch<shmbw_gpu_pinned>(SHMBW_OP_GPU_PINNED, {{region.ref(), flags, 0}}));
  };
  CHECK(pin(SHMBW_GPU_PINNED_UNPIN).status == Status::invalid);
  CHECK(pin(0).reply.pins == 1);
  CHECK(pin(0).reply.pins == 2);
  CHECK(client.publish(region.ref()).status() == Status::pinned);
  CHECK(pin(SHMBW_GPU_PINNED_UNPIN).reply.pins == 1);
  CHECK(client.publish(region.ref()).error().sentence.find("unregister") != std::string::npos);
  CHECK(pin(SHMBW_GPU_PINNED_UNPIN).reply.pins == 0);
  CHECK(client.publish(region.ref()).status() == Status::ok);

  const auto other = client.create({.length = 4 << 20});
  client.ready(other.ref());
  client.batch<shmbw_gpu_pinned>(SHMBW_OP_GPU_PINNED, {{other.ref(), 0, 0}});
  client.release(other.ref(), 0, SHMBW_RELEASE_RECYCLE);
  world.wait_for_closes();
  CHECK(world.status().bytes_cached == 0);
}

}  // namespace shmb::daemon::test
