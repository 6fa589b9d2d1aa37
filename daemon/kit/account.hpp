// SPDX-License-Identifier: Apache-2.0
// Accounting: host -> uid -> group, and uid -> session. A `Charge` lives inside the object that it pays for. It is
// taken from an account and all its parents at once, or not at all. Its destruction gives everything back. An account
// that ends with a charge left is a bug of the broker. It is reported and never asserted, because the broker must not
// stop.
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {

enum class Resource : std::uint16_t {
  bytes = SHMBW_SLOT_BYTES,
  regions = SHMBW_SLOT_REGIONS,
  leases = SHMBW_SLOT_LEASES,
  sessions = SHMBW_SLOT_SESSIONS,
  groups = SHMBW_SLOT_GROUPS,
  tickets = SHMBW_SLOT_TICKETS,
  names = SHMBW_SLOT_NAMES,
  watches = SHMBW_SLOT_WATCHES,
  worlds = SHMBW_SLOT_WORLDS,
  references = SHMBW_SLOT_REFERENCES,
  gpu_bytes = SHMBW_SLOT_GPU_BYTES,
  gpu_descriptors = SHMBW_SLOT_GPU_DESCRIPTORS,
  timelines = SHMBW_SLOT_TIMELINES,
};
inline constexpr std::size_t kSlots = 13;
std::string_view slot_name(std::uint16_t resource);

class Charge;

// The use of each resource by one host, user, group or session, with a limit for each. A limit may be set below the
// use: it then refuses more, and frees nothing. The parent must outlive the account, and the account must outlive its
// charges.
class Account {
 public:
  using Report = std::function<void(std::string_view)>;
  static constexpr std::uint64_t kNoLimit = UINT64_MAX;

  Account(shmbw_scope scope, std::uint64_t id, Account* parent, const Report* report);
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;
  ~Account();

  std::uint64_t used(Resource resource) const { return used_[index(resource)]; }
  std::uint64_t limit(Resource resource) const { return limit_[index(resource)]; }
  std::uint64_t effective_limit(Resource resource) const;  // the narrowest: its own, or that of a parent
  std::uint64_t peak_bytes() const { return peak_bytes_; }
  void set_limit(Resource resource, std::uint64_t limit) { limit_[index(resource)] = limit; }
  bool balanced() const;
  shmbw_scope scope() const { return scope_; }
  std::uint64_t id() const { return id_; }
  Account* parent() const { return parent_; }

  std::expected<Charge, Shortage> charge(Resource resource, std::uint64_t amount);
  // Looks at no limit: for what the broker before this one has granted.
  Charge take(Resource resource, std::uint64_t amount);

 private:
  friend class Charge;
  static std::size_t index(Resource resource) {
    // Between watches and worlds, and before timelines, the enum has slots that no account counts.
    const auto number = static_cast<std::size_t>(resource);
    if (number <= SHMBW_SLOT_WATCHES) return number - 1;
    return number - SHMBW_SLOT_WORLDS + SHMBW_SLOT_WATCHES - (number > SHMBW_SLOT_LIFETIME ? 1 : 0);
  }
  void give_back(Resource resource, std::uint64_t amount);

  std::array<std::uint64_t, kSlots> used_{};
  std::array<std::uint64_t, kSlots> limit_;
  std::uint64_t peak_bytes_ = 0;
  std::uint64_t id_;
  Account* parent_;
  const Report* report_;
  shmbw_scope scope_;
};

// Ownership: a member of the object that it pays for, moved with it and never copied. An empty one pays for nothing.
class Charge {
 public:
  Charge() = default;
  Charge(Charge&& other) noexcept
      : account_(std::exchange(other.account_, nullptr)), amount_(other.amount_), resource_(other.resource_) {}
  Charge& operator=(Charge&& other) noexcept {
    if (this != &other) {
      give_back();
      account_ = std::exchange(other.account_, nullptr);
      amount_ = other.amount_;
      resource_ = other.resource_;
    }
    return *this;
  }
  ~Charge() { give_back(); }
  void give_back();
  explicit operator bool() const { return account_ != nullptr; }
  std::uint64_t amount() const { return account_ ? amount_ : 0; }
  // Moves the charge to another account of the same parent. The parents' use does not change, so no limit can refuse
  // it.
  void move_to(Account& sibling);
  void rise();  // moves it to the parent of the account: the object that it pays for outlives the account

 private:
  friend class Account;
  Charge(Account& account, Resource resource, std::uint64_t amount)
      : account_(&account), amount_(amount), resource_(resource) {}

  Account* account_ = nullptr;
  std::uint64_t amount_ = 0;
  Resource resource_ = Resource::bytes;
};

}  // namespace shmb::daemon
