/** The account of a member: how far the invitation has got, and the link of it. */
import { Button, Code, CopyButton, Group, Stack } from '@mantine/core'
import { useState } from 'react'
import { useGet } from '../../client/api.ts'
import { medplum, useMe } from '../../client/session.ts'
import { Action } from '../../parts/action.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { Dot } from '../../parts/outcome.tsx'
import { Facts } from '../../parts/table.tsx'
import { Hint } from '../../parts/text.tsx'
import { When } from '../../parts/when.tsx'
import { texts } from '../../texts/texts.ts'

const words = texts.account

interface Account {
  readonly email?: string
  readonly scope: 'project' | 'server'
  readonly state: 'invited' | 'accepted'
  readonly lastSignIn?: string
  readonly mail?: 'waiting' | 'kept' | 'failed'
  readonly linkExpires?: string
}

function useAccount(id: string | undefined) {
  const { project } = useMe()
  const address = `admin/projects/${project.id}/members/${id}`
  return { address, found: useGet<Account>(`${address}/account`) }
}

interface Props {
  /** Id of the ProjectMembership. */
  readonly id: string | undefined
}

/** In a list; empty until it is known. */
export function AccountState({ id }: Props) {
  const { data } = useAccount(id).found
  return data ? <State account={data} /> : null
}

interface AccountProps {
  readonly account: Account
}

function State({ account: { state, mail } }: AccountProps) {
  const isUnsent = state === 'invited' && (mail === 'kept' || mail === 'failed')
  return (
    <Group gap={4}>
      <Dot color={state === 'accepted' ? 'green' : 'yellow'}>{words.states[state]}</Dot>
      {isUnsent && <Dot color="red">{words.unsent}</Dot>}
    </Group>
  )
}

export function AccountPart({ id }: Props) {
  const { project } = useMe()
  const { address, found } = useAccount(id)
  return (
    <Loaded query={found}>
      {(account) => (
        <Stack>
          <Facts
            label={words.title}
            rows={[
              [words.email, account.email ?? words.noEmail],
              [words.state, <State key="state" account={account} />],
              [words.lastSignIn, <When key="last" at={account.lastSignIn} />],
              ...(account.state === 'invited'
                ? [[words.mail, words.mails[account.mail ?? 'sent']] as const]
                : []),
              ...(account.linkExpires
                ? [[words.linkExpires, <When key="ends" at={account.linkExpires} />] as const]
                : []),
              [
                words.signIn,
                account.scope === 'project'
                  ? `${location.origin}/console/p/${project.id}`
                  : `${location.origin}/console`,
              ],
            ]}
          />
          {account.state === 'invited' && account.email && (
            <Invitation address={address} account={account} />
          )}
        </Stack>
      )}
    </Loaded>
  )
}

interface InvitationProps extends AccountProps {
  readonly address: string
}

interface Again {
  readonly link?: string
}

function Invitation({ address, account: { scope } }: InvitationProps) {
  const [link, setLink] = useState<string>()
  const invite = (sendEmail: boolean): Promise<Again> =>
    medplum.post(`${address}/invitation`, { sendEmail })
  return (
    <Stack gap="xs">
      <Group>
        <Action send={() => invite(true)} done={words.resent}>
          {words.resend}
        </Action>
        {scope === 'project' && (
          <Action send={() => invite(false)} after={(made) => setLink(made.link)}>
            {words.makeLink}
          </Action>
        )}
      </Group>
      {scope === 'server' && <Hint>{words.onlyMailed}</Hint>}
      {link && (
        <Group role="status" gap="xs">
          <Code style={{ overflowWrap: 'anywhere' }}>{link}</Code>
          <CopyButton value={link}>
            {({ copied, copy }) => (
              <Button size="xs" variant="default" onClick={copy}>
                {copied ? texts.common.copied : texts.common.copy}
              </Button>
            )}
          </CopyButton>
          <Hint>{words.linkHint}</Hint>
        </Group>
      )}
    </Stack>
  )
}
