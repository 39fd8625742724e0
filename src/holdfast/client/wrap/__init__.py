"""What happens in the processes of a tool that `holdfast wrap` started."""
