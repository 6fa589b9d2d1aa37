// SPDX-License-Identifier: Apache-2.0
// Charges: taken from all scopes or none, given back whole, and an imbalance is told.
#include <doctest/doctest.h>

#include <optional>
#include <random>
#include <vector>

#include "daemon/kit/account.hpp"

using namespace shmb;
using daemon::Account;
using daemon::Charge;
using daemon::Resource;

namespace {

struct Tree {
  std::string told;
  Account::Report report = [this](std::string_view text) { told = text; };
  Account host{SHMBW_SCOPE_HOST, 0, nullptr, &report};
  Account uid{SHMBW_SCOPE_UID, 1000, &host, &report};
  Account group{SHMBW_SCOPE_GROUP, 7, &uid, &report};
};

}  // namespace

TEST_CASE("a charge is taken from an account and all its parents, and given back by its end") {
  Tree tree;
  {
    auto charge = tree.group.charge(Resource::bytes, 100);
    REQUIRE(charge);
    CHECK(tree.group.used(Resource::bytes) == 100);
    CHECK(tree.uid.used(Resource::bytes) == 100);
    CHECK(tree.host.used(Resource::bytes) == 100);
    Charge moved = std::move(*charge);
    CHECK(tree.host.used(Resource::bytes) == 100);
  }
  CHECK(tree.group.balanced());
  CHECK(tree.host.balanced());
  CHECK(tree.group.peak_bytes() == 100);
}

TEST_CASE("the limit of each scope refuses and leaves every account as it was") {
  for (auto scope : {SHMBW_SCOPE_HOST, SHMBW_SCOPE_UID, SHMBW_SCOPE_GROUP}) {
    Tree tree;
    Account& narrow = scope == SHMBW_SCOPE_HOST ? tree.host : scope == SHMBW_SCOPE_UID ? tree.uid : tree.group;
    narrow.set_limit(Resource::regions, 10);
    auto nine = tree.group.charge(Resource::regions, 9);
    auto over = tree.group.charge(Resource::regions, 2);
    REQUIRE(nine);
    REQUIRE(!over);
    CHECK(over.error().scope == scope);
    CHECK(over.error().scope_id == narrow.id());
    CHECK(over.error().slot == SHMBW_SLOT_REGIONS);
    CHECK(over.error().limit == 10);
    CHECK(over.error().used == 9);
    CHECK(over.error().asked == 2);
    CHECK(tree.group.used(Resource::regions) == 9);
    CHECK(tree.host.used(Resource::regions) == 9);
    CHECK(tree.group.charge(Resource::regions, 1));  // exactly the limit
  }
}

TEST_CASE("a sum that would overflow is refused") {
  Tree tree;
  auto most = tree.group.charge(Resource::bytes, UINT64_MAX - 1);
  REQUIRE(most);
  CHECK(!tree.group.charge(Resource::bytes, 2));
  CHECK(tree.group.charge(Resource::bytes, 1));
}

TEST_CASE("a limit below what is used refuses everything and takes nothing away") {
  Tree tree;
  auto charge = tree.group.charge(Resource::bytes, 100);
  tree.group.set_limit(Resource::bytes, 50);
  CHECK(!tree.group.charge(Resource::bytes, 1));
  CHECK(tree.group.used(Resource::bytes) == 100);
}

TEST_CASE("moving a charge to a sibling leaves the parents' books alone") {
  Tree tree;
  Account a{SHMBW_SCOPE_SESSION, 1, &tree.uid, &tree.report}, b{SHMBW_SCOPE_SESSION, 2, &tree.uid, &tree.report};
  b.set_limit(Resource::leases, 0);  // a takeover is never refused
  auto charge = a.charge(Resource::leases, 3);
  REQUIRE(charge);
  charge->move_to(b);
  CHECK(a.used(Resource::leases) == 0);
  CHECK(b.used(Resource::leases) == 3);
  CHECK(tree.uid.used(Resource::leases) == 3);
  charge->give_back();
  CHECK(tree.uid.balanced());
}

TEST_CASE("an account that ends with something charged to it is reported as the broker's bug, and the broker goes on") {
  Tree tree;
  std::optional<Charge> charge;
  alignas(Account) std::byte place[sizeof(Account)];  // stays readable after the account's end
  auto* leaky = new (place) Account(SHMBW_SCOPE_SESSION, 9, &tree.uid, &tree.report);
  charge = std::move(leaky->charge(Resource::watches, 1).value());
  leaky->~Account();
  CHECK(tree.told.find("own bug") == 0);
  new (place) Account(SHMBW_SCOPE_SESSION, 9, &tree.uid, &tree.report);
  charge.reset();  // more given back than the new account has: told, and it stays at zero
  CHECK(tree.told.find("given back") != tree.told.npos);
  CHECK(leaky->used(Resource::watches) == 0);
  CHECK(tree.uid.used(Resource::watches) == 0);
}

TEST_CASE("any sequence of a million charges and returns balances") {
  Tree tree;
  tree.group.set_limit(Resource::bytes, 5000);
  tree.uid.set_limit(Resource::bytes, 8000);
  Account other{SHMBW_SCOPE_GROUP, 8, &tree.uid, &tree.report};
  std::mt19937 random(20261120);
  std::vector<Charge> held;
  std::uint64_t sum = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    if (random() % 2 == 0 || held.empty()) {
      std::uint64_t amount = random() % 100;
      auto charge = (random() % 2 ? tree.group : other).charge(Resource::bytes, amount);
      if (!charge) continue;
      sum += amount;
      held.push_back(std::move(*charge));
    } else {
      std::size_t at = random() % held.size();
      sum -= held[at].amount();
      std::swap(held[at], held.back());
      held.pop_back();
    }
    if (tree.host.used(Resource::bytes) != sum || tree.uid.used(Resource::bytes) > 8000 ||
        tree.group.used(Resource::bytes) + other.used(Resource::bytes) != sum)
      FAIL("sums differ at step " << i);
  }
  held.clear();
  CHECK(tree.host.balanced());
  CHECK(other.balanced());
}
