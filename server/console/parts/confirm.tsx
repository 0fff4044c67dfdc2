/** A button with a confirmation, for irreversible actions. */
import { Button, Group, Modal, Stack } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import { texts } from '../texts/texts.ts'

interface Props {
  readonly label: string
  readonly confirm: string
  readonly onConfirm: () => void
  /** Red unless another one is given. */
  readonly color?: string
  /** False while the fields in it are incomplete. */
  readonly isComplete?: boolean
  readonly children: React.ReactNode
}

export function Confirm(props: Props) {
  const { label, confirm, onConfirm, color = 'red', isComplete = true, children } = props
  const [isOpen, { open, close }] = useDisclosure()
  return (
    <>
      <Button variant="light" color={color} onClick={open}>
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
              color={color}
              data-confirm
              disabled={!isComplete}
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
