/** A button with a confirmation, for irreversible actions. */
import { Button, Group, Modal, Stack } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import { texts } from '../texts/texts.ts'

interface Props {
  readonly label: string
  readonly confirm: string
  readonly onConfirm: () => void
  readonly children: React.ReactNode
}

export function Confirm({ label, confirm, onConfirm, children }: Props) {
  const [isOpen, { open, close }] = useDisclosure()
  return (
    <>
      <Button variant="light" color="red" onClick={open}>
        {label}
      </Button>
      <Modal opened={isOpen} onClose={close} title={label}>
        <Stack>
          {children}
          <Group justify="flex-end">
            <Button variant="default" onClick={close} data-autofocus>
              {texts.common.cancel}
            </Button>
            <Button
              color="red"
              data-confirm
              onClick={() => {
                close()
                onConfirm()
              }}
            >
              {confirm}
            </Button>
          </Group>
        </Stack>
      </Modal>
    </>
  )
}
