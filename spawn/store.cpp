// SPDX-License-Identifier: Apache-2.0
// See store.hpp. A rank that came and died afterwards has come: its value counts.
#include "spawn/store.hpp"

#include <algorithm>
#include <charconv>

#include "base/text.hpp"
#include "spawn/bytes.hpp"

namespace shmb::spawn {

std::string Store::who(std::size_t local) const { return "rank " + std::to_string(local) + " " + gone_[local]; }

void Store::refuse(std::int32_t local, std::uint64_t tag, Status status, const std::string& sentence) {
  answer_(local, tag, status, sentence);
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
      if (left != gone_.end())
        return refuse(
            local, tag, Status::peer_gone,
            who(static_cast<std::size_t>(left - gone_.begin())) + ", and nobody has set the key " + quoted(key));
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
        stored_ -= key.size() + found->second.size();
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
  const std::size_t freed = found == values_.end() ? 0 : key.size() + found->second.size();
  const std::size_t needed = key.size() + value.size();
  if (stored_ - freed + needed > kMostStored)
    return refuse(local, tag, Status::limit,
                  "the store of the ranks has room for " + std::to_string(kMostStored) + " bytes, " +
                      std::to_string(stored_) + " are in use: erase keys that nobody needs");
  stored_ = stored_ - freed + needed;
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (it->key == key) {
      answer_(it->local, it->tag, Status::ok, value);
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
    return refuse(local, frame.tag, Status::invalid, "a name has at most " + std::to_string(kMostKey) + " bytes");
  if (frame.op == Op::broadcast && (call.root < 0 || call.root >= ranks))
    return refuse(local, frame.tag, Status::invalid,
                  "root " + std::to_string(call.root) + ": ranks are 0 to " + std::to_string(ranks - 1));
  if (call.value.size() > (frame.op == Op::all_gather ? kMostGathered / gone_.size() : kMostValue))
    return refuse(local, frame.tag, Status::limit,
                  "values of " + std::to_string(call.value.size()) + " bytes for " + std::to_string(ranks) +
                      " ranks are too large: pass large things as regions");
  Round& round = rounds_[name];
  round.resize(gone_.size());
  constexpr std::size_t kMostCalls = 1024;
  auto& mine = round[static_cast<std::size_t>(local)];
  if (mine.size() >= kMostCalls)
    return refuse(local, frame.tag, Status::limit, "1,024 calls of this rank wait for the others already");
  mine.push_back(std::move(call));
  look(name);
}

void Store::look(const Name& name) {
  const auto found = rounds_.find(name);
  if (found == rounds_.end()) return;
  Round& round = found->second;
  for (;;) {
    auto here =
        static_cast<std::size_t>(std::ranges::count_if(round, [](const auto& calls) { return !calls.empty(); }));
    if (here == round.size()) {
      complete(name, round);
      continue;
    }
    const auto missing = std::ranges::find_if(gone_first_, [&](std::size_t i) { return round[i].empty(); });
    if (missing != gone_first_.end()) {
      const std::string sentence = who(*missing) + " before it came";
      for (std::size_t i = 0; i < round.size(); ++i) {
        for (const Call& call : round[i])
          if (gone_[i].empty()) refuse(static_cast<std::int32_t>(i), call.tag, Status::peer_gone, sentence);
        round[i].clear();
      }
      here = 0;
    }
    if (here == 0) rounds_.erase(found);
    return;
  }
}

void Store::complete(const Name& name, Round& round) {
  const std::int32_t root = round[0].front().root;
  bool agreed = true;
  Packer all;
  all.number<std::uint64_t>(round.size());
  for (const auto& calls : round) {
    agreed &= calls.front().root == root;
    if (name.first == Op::all_gather) all.text(calls.front().value);
  }
  std::string answer;
  if (name.first == Op::broadcast && agreed) answer = round[static_cast<std::size_t>(root)].front().value;
  if (name.first == Op::all_gather) answer = all.take();
  for (std::size_t i = 0; i < round.size(); ++i) {
    const std::uint64_t tag = round[i].front().tag;
    round[i].pop_front();
    if (!gone_[i].empty()) continue;
    if (agreed) answer_(static_cast<std::int32_t>(i), tag, Status::ok, answer);
    else refuse(static_cast<std::int32_t>(i), tag, Status::invalid, "the ranks do not name the same root");
  }
}

void Store::cancel(std::int32_t local, std::uint64_t tag) {
  const std::string sentence = "the deadline passed before the others came";
  for (auto it = waiters_.begin(); it != waiters_.end(); ++it) {
    if (it->local != local || it->tag != tag) continue;
    waiters_.erase(it);
    return refuse(local, tag, Status::deadline, sentence);
  }
  for (auto it = rounds_.begin(); it != rounds_.end(); ++it) {
    auto& calls = it->second[static_cast<std::size_t>(local)];
    const auto call = std::ranges::find(calls, tag, &Call::tag);
    if (call == calls.end()) continue;
    calls.erase(call);
    if (std::ranges::all_of(it->second, [](const auto& one) { return one.empty(); })) rounds_.erase(it);
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
  // Nobody can know who was to set a key: after a death, or when all others have ended, it is not waited for any more.
  const std::size_t alive = static_cast<std::size_t>(std::ranges::count(gone_, std::string()));
  if (how != "has died" && alive > 1) return;
  for (const Waiter& one : waiters_)
    refuse(one.local, one.tag, Status::peer_gone,
           who(static_cast<std::size_t>(local)) + ", and nobody has set the key " + quoted(one.key));
  waiters_.clear();
}

}  // namespace shmb::spawn
