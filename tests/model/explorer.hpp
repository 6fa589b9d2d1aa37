// SPDX-License-Identifier: Apache-2.0
// Explores every interleaving of a model, breadth first, with whole states kept: no state is taken for another. The
// first wrong state found is one with the shortest way to it, and that way can be printed.
//
// A model is a class with
//   State                               a plain struct without padding; two states are the same when their bytes are
//   kParts                              how many bytes each part of it has; steps change few of the parts
//   State first() const
//   void steps(const State&, Emit<State>&) const     every next state, one emit() each
//   const char* wrong(const State&) const            what is wrong in this state, or nullptr
//   const char* wrong_at_rest(const State&) const    the same, where nothing but a kill is left to do
//   std::string show(const State&) const             one line for people
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/model/step.hpp"

namespace shmb::model {

using StepSet = std::bitset<static_cast<std::size_t>(Step::count)>;

// Takes the next states of one state.
template <class State>
class Emit {
 public:
  struct Next {
    State state;
    int who;  // an index, or -1: the broker
    Step step;
    const char* fault;  // what the step itself has done wrong
  };
  // The step that is being built breaks an invariant.
  void fault(const char* text) { fault_ = text; }
  void operator()(int who, Step step, const State& next) {
    next_.push_back({next, who, step, std::exchange(fault_, nullptr)});
  }
  std::vector<Next>& next() { return next_; }

 private:
  std::vector<Next> next_;
  const char* fault_ = nullptr;
};

// Kills and stops come from outside; whether a state can come to rest must not depend on them.
constexpr bool from_outside(Step step) { return step == Step::kill || step == Step::stop; }

struct Limits {
  std::uint64_t states = 400'000'000;
  bool liveness = false;  // keeps the edges: 4 bytes each
};

struct Report {
  std::uint64_t states = 0, edges = 0;
  std::string wrong;               // empty: every invariant holds
  std::vector<std::string> trace;  // the way to the wrong state
  bool complete = false;           // false: stopped at the limit or at what is wrong
  bool live = false;               // looked at, and from every state rest can be reached without further kills
  StepSet taken;
};

// The values that one part of the states has ever had, each once. A part is a participant, a lane or what else there
// is: few hundred thousand values make up hundreds of millions of states.
class Values {
 public:
  explicit Values(std::size_t bytes) : bytes_(bytes), table_(1 << 8, kNobody) {}
  const unsigned char* operator[](std::uint32_t index) const { return values_.data() + index * bytes_; }
  std::uint32_t index_of(const unsigned char* value) {
    if (std::size_t{count_} * 5 > table_.size() * 3) grow();
    std::size_t at = hash(value) & (table_.size() - 1);
    for (; table_[at] != kNobody; at = (at + 1) & (table_.size() - 1))
      if (std::memcmp((*this)[table_[at]], value, bytes_) == 0) return table_[at];
    values_.insert(values_.end(), value, value + bytes_);
    return table_[at] = count_++;
  }

 private:
  static constexpr std::uint32_t kNobody = UINT32_MAX;
  std::uint64_t hash(const unsigned char* bytes) const {
    std::uint64_t mixed = 0x9e3779b97f4a7c15;
    std::size_t at = 0;
    for (; at + 8 <= bytes_; at += 8) {
      std::uint64_t word;
      std::memcpy(&word, bytes + at, 8);
      mixed = (mixed ^ word) * 0xff51afd7ed558ccd;
      mixed ^= mixed >> 32;
    }
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + at, bytes_ - at);
    mixed = (mixed ^ word) * 0xc4ceb9fe1a85ec53;
    return mixed ^ mixed >> 29;
  }
  void grow() {
    table_.assign(table_.size() * 2, kNobody);
    for (std::uint32_t index = 0; index < count_; ++index) {
      std::size_t at = hash((*this)[index]) & (table_.size() - 1);
      while (table_[at] != kNobody) at = (at + 1) & (table_.size() - 1);
      table_[at] = index;
    }
  }
  const std::size_t bytes_;
  std::uint32_t count_ = 0;
  std::vector<unsigned char> values_;
  std::vector<std::uint32_t> table_;
};

// All states, each as the places of its parts' values: 24 bytes or so instead of 200, and nothing is lost by it.
template <class Model>
class Store {
 public:
  using State = typename Model::State;
  static constexpr std::size_t kParts = Model::kParts.size();
  using Places = std::array<std::uint32_t, kParts>;
  static_assert(std::is_trivially_copyable_v<State> && std::has_unique_object_representations_v<State>);
  static_assert(std::accumulate(Model::kParts.begin(), Model::kParts.end(), std::size_t{0}) == sizeof(State));

  Store() : table_(1 << 16, kNobody) {
    for (const std::size_t bytes : Model::kParts) values_.emplace_back(bytes);
  }
  std::uint32_t size() const { return static_cast<std::uint32_t>(parents_.size()); }
  std::uint32_t parent(std::uint32_t index) const { return parents_[index]; }
  State operator[](std::uint32_t index) const {
    State state;
    auto* to = reinterpret_cast<unsigned char*>(&state);
    for (std::size_t part = 0; part < kParts; to += Model::kParts[part++])
      std::memcpy(to, values_[part][places(index)[part]], Model::kParts[part]);
    return state;
  }

  // The index of the state, and whether it is new. `before`: one step before it (index `parent`), of which most parts
  // are the same.
  std::pair<std::uint32_t, bool> insert(const State& state, std::uint32_t parent, const State* before) {
    if (parents_.size() * 4 > table_.size() * 3) grow();
    Places where;
    const auto* from = reinterpret_cast<const unsigned char*>(&state);
    const auto* known = reinterpret_cast<const unsigned char*>(before);
    std::size_t offset = 0;
    for (std::size_t part = 0; part < kParts; offset += Model::kParts[part++]) {
      const bool same = known != nullptr && std::memcmp(from + offset, known + offset, Model::kParts[part]) == 0;
      where[part] = same ? places(parent)[part] : values_[part].index_of(from + offset);
    }
    std::size_t at = hash(where) & (table_.size() - 1);
    for (; table_[at] != kNobody; at = (at + 1) & (table_.size() - 1))
      if (places(table_[at]) == where) return {table_[at], false};
    const std::uint32_t index = size();
    if ((index & kMask) == 0) chunks_.push_back(std::make_unique_for_overwrite<Places[]>(kMask + 1));
    chunks_.back()[index & kMask] = where;
    parents_.push_back(parent);
    table_[at] = index;
    return {index, true};
  }

 private:
  static constexpr std::uint32_t kNobody = UINT32_MAX, kShift = 16, kMask = (1u << kShift) - 1;
  const Places& places(std::uint32_t index) const { return chunks_[index >> kShift][index & kMask]; }
  static std::uint64_t hash(const Places& where) {
    std::uint64_t mixed = 0x9e3779b97f4a7c15;
    for (const std::uint32_t one : where) {
      mixed = (mixed ^ one) * 0xff51afd7ed558ccd;
      mixed ^= mixed >> 32;
    }
    return mixed;
  }
  void grow() {
    table_.assign(table_.size() * 2, kNobody);
    for (std::uint32_t index = 0; index < size(); ++index) {
      std::size_t at = hash(places(index)) & (table_.size() - 1);
      while (table_[at] != kNobody) at = (at + 1) & (table_.size() - 1);
      table_[at] = index;
    }
  }
  std::vector<Values> values_;
  std::vector<std::unique_ptr<Places[]>> chunks_;
  std::vector<std::uint32_t> parents_, table_;
};

// The parts of a state that begins with some participants, then some lanes, and has `rest` bytes more.
template <std::size_t Participants, std::size_t Lanes>
constexpr std::array<std::size_t, Participants + Lanes + 1> parts_of(std::size_t participant, std::size_t lane,
                                                                     std::size_t state) {
  std::array<std::size_t, Participants + Lanes + 1> parts{};
  for (std::size_t i = 0; i < Participants + Lanes; ++i) parts[i] = i < Participants ? participant : lane;
  parts.back() = state - Participants * participant - Lanes * lane;
  return parts;
}

// The way from the first state to `end`, found again by asking each state of it for its next ones.
template <class Model>
std::vector<std::string> way(const Model& model, const Store<Model>& store, std::uint32_t end) {
  using State = typename Model::State;
  std::vector<std::uint32_t> path{end};
  while (path.back() != 0) path.push_back(store.parent(path.back()));
  std::vector<std::string> lines;
  for (std::size_t i = path.size() - 1; i > 0; --i) {
    Emit<State> emit;
    model.steps(store[path[i]], emit);
    const State after = store[path[i - 1]];
    for (const auto& next : emit.next()) {
      if (std::memcmp(&next.state, &after, sizeof(State)) != 0) continue;
      const std::string who = next.who < 0 ? "broker" : "p" + std::to_string(next.who);
      lines.push_back(who + " " + kStepNames[static_cast<std::size_t>(next.step)] + "   " + model.show(next.state));
      break;
    }
  }
  return lines;
}

// Whether every state can reach one at rest. Edges go mostly forward, so a few sweeps from the back settle it.
inline bool all_can_rest(const std::vector<std::uint64_t>& first_edge, const std::vector<std::uint32_t>& edges,
                         std::vector<bool>& can, std::uint32_t* one_that_cannot) {
  const auto states = static_cast<std::uint32_t>(first_edge.size() - 1);
  for (bool changed = true; changed;) {
    changed = false;
    for (std::uint32_t state = states; state-- > 0;) {
      if (can[state]) continue;
      for (std::uint64_t e = first_edge[state]; e < first_edge[state + 1] && !can[state]; ++e)
        if (can[edges[e]]) can[state] = changed = true;
    }
  }
  for (std::uint32_t state = 0; state < states; ++state)
    if (!can[state]) {
      *one_that_cannot = state;
      return false;
    }
  return true;
}

template <class Model>
Report explore(const Model& model, const Limits& limits) {
  using State = typename Model::State;
  Report report;
  Store<Model> store;
  std::vector<std::uint64_t> first_edge;
  std::vector<std::uint32_t> edges;
  std::vector<bool> can_rest;
  Emit<State> emit;
  const auto fail = [&](const char* what, std::uint32_t at) {
    report.wrong = what;
    report.trace = way(model, store, at);
    report.states = store.size();
    return report;
  };
  store.insert(model.first(), 0, nullptr);
  for (std::uint32_t at = 0; at < store.size(); ++at) {
    if (store.size() > limits.states) return fail("the limit of states is reached", at);
    const State state = store[at];
    emit.next().clear();
    model.steps(state, emit);
    bool rest = true;
    if (limits.liveness) first_edge.push_back(edges.size());
    for (const auto& next : emit.next()) {
      ++report.edges;
      report.taken.set(static_cast<std::size_t>(next.step));
      if (!from_outside(next.step)) rest = false;
      const auto [index, fresh] = store.insert(next.state, at, &state);
      if (limits.liveness && !from_outside(next.step)) edges.push_back(index);
      if (next.fault != nullptr) {
        if (fresh) return fail(next.fault, index);
        report = fail(next.fault, at);  // the step leads to a known state: show the way to before it
        report.trace.push_back(std::string("then ") + kStepNames[static_cast<std::size_t>(next.step)]);
        return report;
      }
      if (fresh)
        if (const char* what = model.wrong(next.state)) return fail(what, index);
    }
    if (rest)
      if (const char* what = model.wrong_at_rest(state)) return fail(what, at);
    if (limits.liveness) can_rest.push_back(rest);
  }
  report.states = store.size();
  report.complete = true;
  if (limits.liveness) {
    first_edge.push_back(edges.size());
    std::uint32_t stuck = 0;
    if (!all_can_rest(first_edge, edges, can_rest, &stuck))
      return fail("live: rest cannot be reached from here", stuck);
    report.live = true;
  }
  return report;
}

}  // namespace shmb::model
