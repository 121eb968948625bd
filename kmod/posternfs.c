// SPDX-License-Identifier: GPL-2.0
/* posternfs.c - the file system of stacks' inodes: never mounted by anybody but the module. */
/*
 * All descriptors of one stack have the same inode, and those of two stacks never: fstat() says
 * whether two descriptors are one stack's. /proc/PID/fd shows `postern:[SERIAL]`.
 */
#include <linux/file.h>
#include <linux/mount.h>
#include <linux/pseudo_fs.h>

#include "kmod.h"

#define POSTERNFS_MAGIC 0x706f7374 /* "post" */

static struct vfsmount *mount;

static char *posternfs_name(struct dentry *dentry, char *buffer, int length)
{
	char name[32];
	const int n = snprintf(name, sizeof(name), "postern:[%lu]", d_inode(dentry)->i_ino) + 1;

	if (n > length)
		return ERR_PTR(-ENAMETOOLONG);
	return memcpy(buffer + length - n, name, n);
}

static const struct dentry_operations posternfs_dentries = {
	.d_dname = posternfs_name,
};

static int posternfs_context(struct fs_context *fc)
{
	struct pseudo_fs_context *ctx = init_pseudo(fc, POSTERNFS_MAGIC);

	if (!ctx)
		return -ENOMEM;
	ctx->dops = &posternfs_dentries;
	return 0;
}

static struct file_system_type posternfs = {
	.name = "posternfs", /* no owner: its mount is the module's own, and would keep it for ever */
	.init_fs_context = posternfs_context,
	.kill_sb = kill_anon_super,
};

int pstn_fs_init(void)
{
	mount = kern_mount(&posternfs);
	return PTR_ERR_OR_ZERO(mount);
}

void pstn_fs_exit(void)
{
	kern_unmount(mount);
}

struct inode *pstn_fs_inode(u64 serial)
{
	struct inode *inode = alloc_anon_inode(mount->mnt_sb);

	if (IS_ERR(inode))
		return NULL;
	inode->i_ino = serial;
	return inode;
}

struct file *pstn_fs_file(struct inode *inode, const struct file_operations *fops, void *private)
{
	struct file *file;

	ihold(inode);
	file = alloc_file_pseudo(inode, mount, "postern", O_RDWR, fops);
	if (IS_ERR(file)) {
		iput(inode);
		return file;
	}
	__module_get(THIS_MODULE); /* the last fput() gives it back */
	file->private_data = private;
	return file;
}
