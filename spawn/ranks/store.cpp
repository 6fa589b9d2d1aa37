// SPDX-License-Identifier: Apache-2.0
// See store.hpp. A rank that arrived and died afterwards counts as arrived, with its value.
#include "spawn/ranks/store.hpp"

#include <algorithm>
#include <charconv>

#include "base/text.hpp"
#include "spawn/ranks/bytes.hpp"

namespace shmb::spawn {

std::string Store::who(std::size_t local) const {
  return "rank " + std::to_string(static_cast<std::size_t>(first_) + local) + " " + gone_[local];
}

void Store::refuse(std::int32_t local, std::uint64_t tag, Status status, const std::string& sentence) {
  answer_(local, tag, status, sentence);
}

bool Store::admit(std::int32_t local, std::uint64_t tag, std::size_t bytes) {
  Waiting& mine = waiting_[static_cast<std::size_t>(local)];
  if (mine.calls >= kMostOutstanding || mine.bytes + bytes > kMostOutstandingBytes) {
    refuse(local, tag, Status::limit,
           std::to_string(mine.calls) + " calls of this rank, with " + std::to_string(mine.bytes) +
               " bytes, wait for others already: at most " + std::to_string(kMostOutstanding) + " with " +
               std::to_string(kMostOutstandingBytes) + " bytes may: wait for some of them before the next");
    return false;
  }
  ++mine.calls;
  mine.bytes += bytes;
  return true;
}

void Store::release(std::size_t local, std::size_t bytes) {
  --waiting_[local].calls;
  waiting_[local].bytes -= bytes;
}

void Store::request(std::int32_t local, const Frame& frame) {
  const std::uint64_t tag = frame.tag;
  if (frame.op == Op::cancel) return cancel(local, tag);
  if (frame.op >= Op::barrier && frame.op <= Op::all_gather) return come(local, frame);
  Unpacker in(frame.payload);
  const std::string key = in.text();
  if (key.empty() || key.size() > kMostKey)
    return refuse(local, tag, Status::invalid,
                  "a key has 1 to " + std::to_string(kMostKey) + " bytes; this one has " + std::to_string(key.size()));
  const auto found = values_.find(key);
  switch (frame.op) {
    case Op::set:
      return keep(local, tag, key, in.text(), {});
    case Op::get:
      if (found == values_.end()) return refuse(local, tag, Status::not_found, "nobody has set the key " + quoted(key));
      return answer_(local, tag, Status::ok, found->second);
    case Op::wait: {
      if (found != values_.end()) return answer_(local, tag, Status::ok, found->second);
      const auto left = std::ranges::find_if(gone_, [](const std::string& how) { return how == "has died"; });
      const bool alone = !gone_first_.empty() && std::ranges::count(gone_, std::string()) <= 1;
      if (left != gone_.end() || alone)
        return refuse(local, tag, Status::peer_gone,
                      who(left != gone_.end() ? static_cast<std::size_t>(left - gone_.begin()) : gone_first_.back()) +
                          ", and nobody has set the key " + quoted(key));
      if (!admit(local, tag, key.size())) return;
      waiters_.push_back({local, tag, key});
      return;
    }
    case Op::compare_exchange: {
      const std::string expected = in.text();
      std::string desired = in.text();
      // An absent key equals the empty value.
      const std::string now = found == values_.end() ? std::string() : found->second;
      if (now != expected) return answer_(local, tag, Status::ok, now);
      std::string answer = desired;
      return keep(local, tag, key, std::move(desired), answer);
    }
    case Op::erase: {
      const bool there = found != values_.end();
      if (there) {
        stored_ -= key.size() + found->second.size() + kEntryCost;
        values_.erase(found);
      }
      return answer_(local, tag, Status::ok, there ? "1" : "0");
    }
    case Op::add: {
      std::int64_t sum = 0;
      if (found != values_.end()) {
        const std::string& text = found->second;
        const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), sum);
        if (code != std::errc() || end != text.data() + text.size())
          return refuse(local, tag, Status::invalid, "the value of " + quoted(key) + " is no number");
      }
      if (__builtin_add_overflow(sum, in.number<std::int64_t>(), &sum))
        return refuse(local, tag, Status::invalid, "the sum under " + quoted(key) + " has no room in 64 bits");
      const std::string text = std::to_string(sum);
      return keep(local, tag, key, text, text);
    }
    default:
      refuse(local, tag, Status::unknown_op, "the supervisor does not know this request");
  }
}

void Store::keep(std::int32_t local, std::uint64_t tag, const std::string& key, std::string value,
                 const std::string& answer) {
  if (value.size() > kMostValue)
    return refuse(local, tag, Status::limit,
                  "a value has at most " + std::to_string(kMostValue) + " bytes, this one " +
                      std::to_string(value.size()) + ": pass large things as regions");
  const auto found = values_.find(key);
  const std::size_t freed = found == values_.end() ? 0 : key.size() + found->second.size() + kEntryCost;
  const std::size_t needed = key.size() + value.size() + kEntryCost;
  if (stored_ - freed + needed > kMostStored)
    return refuse(local, tag, Status::limit,
                  "the store of the ranks has room for " + std::to_string(kMostStored) + " bytes, " +
                      std::to_string(stored_) + " are in use, and this value needs " + std::to_string(needed) +
                      ": erase keys that nobody needs, or pass large things as regions");
  stored_ = stored_ - freed + needed;
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (it->key == key) {
      answer_(it->local, it->tag, Status::ok, value);
      release(static_cast<std::size_t>(it->local), it->key.size());
      it = waiters_.erase(it);
    } else {
      ++it;
    }
  }
  values_[key] = std::move(value);
  answer_(local, tag, Status::ok, answer);
}

void Store::come(std::int32_t local, const Frame& frame) {
  Unpacker in(frame.payload);
  Name name{frame.op, in.text()};
  Call call{frame.tag, in.number<std::int32_t>(), in.text()};
  const auto ranks = static_cast<std::int32_t>(gone_.size());
  if (name.second.size() > kMostKey)
    return refuse(
        local, frame.tag, Status::invalid,
        "a name has at most " + std::to_string(kMostKey) + " bytes, this one " + std::to_string(name.second.size()));
  if (frame.op == Op::broadcast && (call.root < 0 || call.root >= ranks))
    return refuse(local, frame.tag, Status::invalid,
                  "root " + std::to_string(call.root) + ": ranks are 0 to " + std::to_string(ranks - 1));
  if (call.value.size() > (frame.op == Op::all_gather ? kMostGathered / gone_.size() : kMostValue))
    return refuse(local, frame.tag, Status::limit,
                  "values of " + std::to_string(call.value.size()) + " bytes for " + std::to_string(ranks) +
                      " ranks are too large (at most " +
                      std::to_string(frame.op == Op::all_gather ? kMostGathered / gone_.size() : kMostValue) +
                      " each): pass large things as regions");
  // no rank asks for it
  if (frame.op == Op::barrier || (frame.op == Op::broadcast && call.root != local)) call.value = {};
  if (!admit(local, frame.tag, name.second.size() + call.value.size())) return;
  rounds_[name][static_cast<std::size_t>(local)].push_back(std::move(call));
  look(name);
}

void Store::take_first(const Name& name, Round& round, std::size_t local) {
  const auto mine = round.find(local);
  release(local, name.second.size() + mine->second.front().value.size());
  mine->second.pop_front();
  if (mine->second.empty()) round.erase(mine);
}

void Store::look(const Name& name) {
  const auto found = rounds_.find(name);
  if (found == rounds_.end()) return;
  Round& round = found->second;
  for (;;) {
    if (round.size() == gone_.size()) {
      complete(name, round);
      continue;
    }
    const auto missing = std::ranges::find_if(gone_first_, [&](std::size_t i) { return !round.contains(i); });
    if (missing != gone_first_.end()) {
      const std::string sentence = who(*missing) + " before it came";
      while (!round.empty()) {
        const std::size_t local = round.begin()->first;
        const std::uint64_t tag = round.begin()->second.front().tag;
        if (gone_[local].empty()) refuse(static_cast<std::int32_t>(local), tag, Status::peer_gone, sentence);
        take_first(name, round, local);
      }
    }
    if (round.empty()) rounds_.erase(found);
    return;
  }
}

void Store::complete(const Name& name, Round& round) {
  const std::int32_t root = round[0].front().root;
  bool agreed = true;
  Packer all;
  all.number<std::uint64_t>(round.size());
  for (const auto& [local, calls] : round) {
    agreed &= calls.front().root == root;
    if (name.first == Op::all_gather) all.text(calls.front().value);
  }
  std::string answer;
  if (name.first == Op::broadcast && agreed) answer = round[static_cast<std::size_t>(root)].front().value;
  if (name.first == Op::all_gather) answer = all.take();
  for (std::size_t i = 0; i < gone_.size(); ++i) {
    const std::uint64_t tag = round[i].front().tag;
    take_first(name, round, i);
    if (!gone_[i].empty()) continue;
    if (agreed) answer_(static_cast<std::int32_t>(i), tag, Status::ok, answer);
    else refuse(static_cast<std::int32_t>(i), tag, Status::invalid, "the ranks do not name the same root");
  }
}

void Store::cancel(std::int32_t local, std::uint64_t tag) {
  const std::string sentence = "the deadline passed before the others came";
  for (auto it = waiters_.begin(); it != waiters_.end(); ++it) {
    if (it->local != local || it->tag != tag) continue;
    release(static_cast<std::size_t>(local), it->key.size());
    waiters_.erase(it);
    return refuse(local, tag, Status::deadline, sentence);
  }
  for (auto it = rounds_.begin(); it != rounds_.end(); ++it) {
    const auto mine = it->second.find(static_cast<std::size_t>(local));
    if (mine == it->second.end()) continue;
    auto& calls = mine->second;
    const auto call = std::ranges::find(calls, tag, &Call::tag);
    if (call == calls.end()) continue;
    release(mine->first, it->first.second.size() + call->value.size());
    calls.erase(call);
    if (calls.empty()) it->second.erase(mine);
    if (it->second.empty()) rounds_.erase(it);
    return refuse(local, tag, Status::deadline, sentence);
  }
}

void Store::gone(std::int32_t local, const std::string& how) {
  std::string& state = gone_[static_cast<std::size_t>(local)];
  if (!state.empty() && state != "is gone") return;
  if (state.empty()) gone_first_.push_back(static_cast<std::size_t>(local));
  state = how;  // at the end of its channel it is not known yet how it ended
  std::erase_if(waiters_, [&](const Waiter& one) { return one.local == local; });
  std::vector<Name> names;
  for (const auto& [name, round] : rounds_) names.push_back(name);
  for (const Name& name : names) look(name);
  // No process knows which rank would set a key. So after a death, or when all others have ended, it is not waited for
  // any more.
  const std::size_t alive = static_cast<std::size_t>(std::ranges::count(gone_, std::string()));
  if (how != "has died" && alive > 1) return;
  for (const Waiter& one : waiters_)
    refuse(one.local, one.tag, Status::peer_gone,
           who(static_cast<std::size_t>(local)) + ", and nobody has set the key " + quoted(one.key));
  for (const Waiter& one : waiters_) release(static_cast<std::size_t>(one.local), one.key.size());
  waiters_.clear();
}

}  // namespace shmb::spawn
