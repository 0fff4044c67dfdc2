/** Buttons that send a change, at once or after a question. */
import { Button, type ButtonProps, Group, Modal, Stack } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import { type SendOptions, useSend } from '../client/api.ts'
import { texts } from '../texts/texts.ts'

type Sending<O> = Pick<SendOptions<void, O>, 'send' | 'done' | 'after' | 'reread'>

interface ActionProps<O> extends Sending<O>, ButtonProps {
  readonly id?: string
  readonly children: React.ReactNode
}

export function Action<O>({ send, done, after, reread, ...button }: ActionProps<O>) {
  const { mutate, isPending } = useSend<void, O>({ send, done, after, reread })
  return <Button variant="default" {...button} loading={isPending} onClick={() => mutate()} />
}

type ConfirmedProps<O> = Sending<O> & Omit<ConfirmProps, 'onConfirm'>

export function ConfirmedAction<O>({ send, done, after, reread, ...asked }: ConfirmedProps<O>) {
  const { mutate } = useSend<void, O>({ send, done, after, reread })
  return <Confirm {...asked} onConfirm={() => mutate()} />
}

interface ConfirmProps {
  readonly label: string
  readonly confirm: string
  readonly onConfirm: () => void
  /** Red unless another one is given. */
  readonly color?: string
  /** False while the fields in it are incomplete. */
  readonly isComplete?: boolean
  readonly children: React.ReactNode
}

/** For irreversible actions. */
export function Confirm(props: ConfirmProps) {
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
