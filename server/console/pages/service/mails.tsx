/** The outbox: without a mail server it is where the links of invitations are found. */
import { Code, Spoiler } from '@mantine/core'
import { useGet } from '../../api.ts'
import { Empty } from '../../parts/empty.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { DataTable } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import { texts } from '../../texts/texts.ts'

const words = texts.service

/** An item of `admin/super/mails`. */
interface Mail {
  readonly id: string
  readonly state: string
  readonly added: string
  readonly attempts: number
  readonly error: string | null
  readonly message: {
    readonly to: readonly string[]
    readonly subject: string
    readonly text?: string
  }
}

export function Mails() {
  const found = useGet<{ readonly mails: readonly Mail[] }>('admin/super/mails', { every: 10_000 })
  return (
    <Loaded query={found}>
      {({ mails }) => (
        <DataTable
          label={words.tabs.mails}
          rows={mails}
          keyOf={({ id }) => id}
          empty={<Empty title={words.noMails} hint={words.noMailsHint} />}
          columns={[
            { name: words.to, cell: ({ message }) => message.to.join(', ') },
            { name: words.subject, cell: ({ message }) => message.subject },
            { name: words.mailState, cell: ({ state }) => state },
            { name: words.attempts, align: 'right', cell: ({ attempts }) => attempts },
            { name: words.error, cell: ({ error }) => error },
            { name: words.added, cell: ({ added }) => <When at={added} /> },
            { name: words.text, cell: ({ message }) => <Body text={message.text ?? ''} /> },
          ]}
        />
      )}
    </Loaded>
  )
}

interface BodyProps {
  readonly text: string
}

function Body({ text }: BodyProps) {
  return (
    <Spoiler maxHeight={24} showLabel={texts.common.more} hideLabel={texts.common.close}>
      <Code style={{ whiteSpace: 'pre-wrap' }}>{text}</Code>
    </Spoiler>
  )
}
