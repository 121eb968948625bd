/* SPDX-License-Identifier: GPL-2.0 */
/* socket_ops_compat.h - where the operations of sockets differ between kernels 6.1 and 6.12. */
#ifndef PSTN_SOCKET_OPS_COMPAT_H
#define PSTN_SOCKET_OPS_COMPAT_H

#include <linux/net.h>
#include <linux/splice.h>
#include <linux/version.h>
#include <net/sock.h>

/* What accept() is told besides the sockets. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
#define PSTN_ACCEPT_ARGS struct proto_accept_arg *arg
#define PSTN_ACCEPT_PASS arg
#else
#define PSTN_ACCEPT_ARGS int flags, bool kern
#define PSTN_ACCEPT_PASS flags, kern
#endif

/* splice() from a socket by way of its recvmsg(). */
static inline ssize_t pstn_copy_splice_read(struct file *file, loff_t *ppos,
					    struct pipe_inode_info *pipe, size_t len,
					    unsigned int flags)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 5, 0)
	return copy_splice_read(file, ppos, pipe, len, flags);
#else
	return generic_file_splice_read(file, ppos, pipe, len, flags);
#endif
}

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 5, 0)
#define PSTN_HAS_SENDPAGE
#endif

#endif
