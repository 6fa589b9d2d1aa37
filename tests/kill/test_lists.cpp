// SPDX-License-Identifier: Apache-2.0
// Deaths with lists of bytes, slots and regions: in a cell, in a slot, in a region of their own; sent, received, kept.
// A region in an unread message lives as long as the message, and no longer.
#include "tests/kill/stage.hpp"

using namespace kill_tests;

namespace {

constexpr std::uint64_t kRegion = 8192;

// Bytes, two slots and a region (or not), each filled as a part of message `id`.
class List {
 public:
  List(const std::shared_ptr<Session>& session, const std::shared_ptr<Pool>& pool, std::uint64_t id, std::size_t bytes,
       bool with_region)
      : pool_(pool), bytes_(bytes) {
    auto next = [&] { return part_id(id, parts_.size()); };
    fill(bytes_, next());
    OutPart part;
    part.data = bytes_.data();
    part.length = bytes_.size();
    parts_.push_back(part);
    for (int i = 0; i < 2; ++i) {
      slots_.push_back(need(pool->acquire(kSlot, 0), "acquire"));
      fill({slots_.back().data, slots_.back().length}, next());
      parts_.push_back(slot_part(slots_.back()));
    }
    if (!with_region) return;
    CreateItem item;
    item.length = kRegion;
    item.group = pool->group();
    region_ = need(create_region(session, item), "region");
    fill(region_->bytes(), next());
    parts_.push_back(region_part(*region_));
  }
  void release() {
    for (const Slot& slot : slots_) need(pool_->release(slot), "release");
    region_.reset();
  }
  std::span<const OutPart> parts() const { return parts_; }

 private:
  std::shared_ptr<Pool> pool_;
  std::vector<std::byte> bytes_;
  std::vector<Slot> slots_;
  Region::Handle region_;
  std::vector<OutPart> parts_;
};

QueueSpec of_kind(Kind kind) {
  QueueSpec spec = queue_spec("q", kind, false, false, 4);
  spec.cell_size = 128;
  return spec;
}

void send_lists(Stage& stage, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    List list(stage.bob_session, stage.bob, stage.id(2, i), i == 2 ? 400 : 32, i != 0);
    auto sent = stage.out->send(list.parts(), 7, 0, kNoWait);
    if (!sent && sent.error().status == Status::peer_gone) sent = stage.out->send(list.parts(), 7, 0, kNoWait);
    must(std::move(sent));
    list.release();
  }
}

}  // namespace

TEST_CASE("lists: a sender killed at any step has sent all of a list or nothing of it") {
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    CAPTURE(static_cast<int>(kind));
    Stage stage(of_kind(kind));
    stage.in = must(Queue::open(stage.ann, stage.reads()));
    cut_short(stage, {.name = "send lists",
                      .body =
                          [&](Self& self) {
                            auto out = self.open(stage.writes());
                            self.ask(1);
                            self.begin();
                            for (unsigned i = 0; i < 3; ++i) {
                              // In a slot; with a region; larger than a slot.
                              List list(self.session, self.pool, stage.id(1, i), i == 2 ? 400 : 32, i != 0);
                              self.send_parts(*out, list.parts());
                              list.release();
                            }
                            // One part fits into the cell itself.
                            const Slot slot = self.fresh_slot(stage.id(1, 3));
                            std::array<std::byte, 16> bytes;
                            fill(bytes, stage.id(1, 3));
                            OutPart part;
                            part.data = bytes.data();
                            part.length = bytes.size();
                            self.send_parts(*out, std::span(&part, 1));
                            need(self.pool->release(slot), "release");
                            self.end();
                          },
                      .on_ask = [](Stage& at, std::uint32_t) { (void)at.take_all(*at.in); },
                      .after =
                          [](Stage& at, const Actor& actor, bool) {
                            const Taken taken = at.take_all(*at.in);
                            CHECK(taken.torn == 0);
                            REQUIRE(taken.ids.size() == actor.published());
                            for (std::size_t i = 0; i < taken.ids.size(); ++i) CHECK(taken.ids[i] == at.id(1, i));
                          }});
  }
}

TEST_CASE("lists: a receiver killed at any step keeps no slot and no region") {
  for (const Kind kind : {Kind::spsc, Kind::mpmc, Kind::broadcast}) {
    CAPTURE(static_cast<int>(kind));
    Stage stage(of_kind(kind));
    stage.out = must(Queue::open(stage.bob, stage.writes()));
    if (kind == Kind::mpmc) stage.in = must(Queue::open(stage.ann, stage.reads()));
    cut_short(stage, {.name = "receive lists",
                      .body =
                          [&](Self& self) {
                            auto in = self.open(stage.reads());
                            self.ask(1);
                            self.begin();
                            Message message;
                            need(self.receive(*in, message, true) == stage.id(2, 0), "kept");
                            need(message.done(), "done");
                            need(self.receive(*in, message, false) == stage.id(2, 1), "borrowed");
                            need(message.keep(), "keep");
                            need(message.done(), "done");
                            need(self.receive(*in, message, false) == stage.id(2, 2), "borrowed");
                            const Slot slot = need(message.take_slot(1), "take");
                            need(message.done(), "done");
                            need(self.pool->release(slot), "release");
                            self.end();
                          },
                      .on_ask = [](Stage& at, std::uint32_t) { send_lists(at, 3); },
                      .after =
                          [kind](Stage& at, const Actor& actor, bool) {
                            // Holds on regions in messages that were read are dropped lazily, at the latest now.
                            if (kind == Kind::mpmc) {
                              const bool were_sent = actor.hits(Step::R4_done) + actor.passed != 0;
                              REQUIRE(actor.taken() <= 3);
                              CHECK(actor.taken() >= actor.shown);  // and so nobody else gets what it had
                              const Taken rest = at.take_expected(*at.in, were_sent ? 3 - actor.taken() : 0);
                              CHECK(rest.torn == 0);
                              if (were_sent) REQUIRE(rest.ids.size() + actor.taken() == 3);
                            }
                            auto drained = at.out->drain(0);
                            if (!drained && drained.error().status == Status::peer_gone) drained = at.out->drain(0);
                            must(std::move(drained));
                          }});
  }
}
