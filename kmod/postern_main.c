// SPDX-License-Identifier: GPL-2.0
/* postern_main.c - /dev/postern, and the module's beginning and end. */
/*
 * The module can be removed when nobody has anything of it: each descriptor of the device and of a
 * stack, and each socket, holds it.
 */
#include <linux/init.h>
#include <linux/miscdevice.h>
#include <linux/uaccess.h>

#include "kmod.h"

static long device_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	const struct pstn_ioc_version version = {
		.kmod_version = PSTN_KMOD_VERSION,
		.abi_version = PSTN_ABI_VERSION,
		.features = PSTN_KMOD_HAS_STREAM | PSTN_KMOD_HAS_LIBRARY,
	};
	struct pstn_ioc_stack stack;

	switch (cmd) {
	case PSTN_IOC_VERSION:
		return copy_to_user((void __user *)arg, &version, sizeof(version)) ? -EFAULT : 0;
	case PSTN_IOC_STACK:
		if (copy_from_user(&stack, (void __user *)arg, sizeof(stack)))
			return -EFAULT;
		return pstn_stack_open(&stack);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations device_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = device_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "postern",
	.mode = 0666, /* a process gets what is its user's, and no more */
	.fops = &device_fops,
};

static int __init postern_init(void)
{
	int err = pstn_fs_init();

	pstn_sleepers_init();
	if (err)
		return err;
	err = pstn_socket_init();
	if (err)
		goto no_sockets;
	err = pstn_proc_init();
	if (err)
		goto no_proc;
	err = misc_register(&device);
	if (!err)
		return 0;
	pstn_proc_exit();
no_proc:
	pstn_socket_exit();
no_sockets:
	pstn_fs_exit();
	return err;
}

static void __exit postern_exit(void)
{
	misc_deregister(&device);
	pstn_proc_exit();
	pstn_socket_exit();
	pstn_fs_exit();
}

module_init(postern_init);
module_exit(postern_exit);
MODULE_LICENSE("GPL");
MODULE_AUTHOR("The Postern authors");
MODULE_DESCRIPTION("Sockets over the shared memory of Postern's processes");
MODULE_VERSION("1");
