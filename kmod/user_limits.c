// SPDX-License-Identifier: GPL-2.0
/* user_limits.c - how much of the module's one user may have. */
#include <linux/slab.h>

#include "kmod.h"

static unsigned int max_of[PSTN_LIMITS] = { 256, 4096, 262144 };
module_param_named(stacks, max_of[PSTN_LIMIT_STACKS], uint, 0644);
MODULE_PARM_DESC(stacks, "stacks that one user may have");
module_param_named(links, max_of[PSTN_LIMIT_LINKS], uint, 0644);
MODULE_PARM_DESC(links, "seats in link groups that one user's stacks may have");
module_param_named(endpoints, max_of[PSTN_LIMIT_ENDPOINTS], uint, 0644);
MODULE_PARM_DESC(endpoints, "sockets that one user's stacks may have");

static DEFINE_MUTEX(users_mutex);
static LIST_HEAD(users);

struct pstn_user *pstn_user_get(kuid_t uid)
{
	struct pstn_user *user;

	mutex_lock(&users_mutex);
	list_for_each_entry(user, &users, node) {
		if (uid_eq(user->uid, uid)) {
			refcount_inc(&user->refs);
			goto out;
		}
	}
	user = kzalloc(sizeof(*user), GFP_KERNEL_ACCOUNT);
	if (user) {
		user->uid = uid;
		refcount_set(&user->refs, 1);
		list_add(&user->node, &users);
	}
out:
	mutex_unlock(&users_mutex);
	return user;
}

void pstn_user_put(struct pstn_user *user)
{
	if (!refcount_dec_and_mutex_lock(&user->refs, &users_mutex))
		return;
	list_del(&user->node);
	mutex_unlock(&users_mutex);
	kfree(user);
}

int pstn_user_charge(struct pstn_user *user, enum pstn_limit limit)
{
	const unsigned int most = min_t(unsigned int, READ_ONCE(max_of[limit]), INT_MAX);

	return atomic_add_unless(&user->counts[limit], 1, most) ? 0 : -EDQUOT;
}

void pstn_user_uncharge(struct pstn_user *user, enum pstn_limit limit)
{
	atomic_dec(&user->counts[limit]);
}
