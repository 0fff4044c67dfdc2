/** The signed-in person's own account: password, second factor and sessions. */
import {
  Badge,
  Box,
  Button,
  Code,
  Image,
  PasswordInput,
  Stack,
  Text,
  TextInput,
} from '@mantine/core'
import { badRequest, OperationOutcomeError, parseJWTPayload } from '@medplum/core'
import { Link } from 'wouter'
import { useGet, useSend } from '../../client/api.ts'
import { medplum, signOut, useMe } from '../../client/session.ts'
import { Form } from '../../parts/form.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { Page, Section } from '../../parts/page.tsx'
import { QueryTable } from '../../parts/query-table.tsx'
import { Facts } from '../../parts/table.tsx'
import { Hint } from '../../parts/text.tsx'
import { When } from '../../parts/when.tsx'
import words from '../../texts/profile.json' with { type: 'json' }
import { fill, texts } from '../../texts/texts.ts'

const NOTHING = { oldPassword: '', newPassword: '', repeated: '' }
const NAMES = ['oldPassword', 'newPassword', 'repeated'] as const

export function ProfilePage() {
  const { membership, project, user } = useMe()
  const { reference = '', display } = membership.profile ?? {}
  const own = (
    <Button component={Link} href={`/resources/${reference}`} variant="default">
      {words.record}
    </Button>
  )
  return (
    <Page title={words.title} hint={words.hint} actions={own}>
      <Stack maw={900} gap="lg">
        <Facts
          label={words.title}
          rows={[
            [words.name, display ?? reference],
            [words.email, user?.email ?? words.noEmail],
            [words.project, project.name ?? project.id],
            [words.role, membership.admin ? texts.members.admin : texts.members.plain],
          ]}
        />
        <Section title={words.password}>
          <Password />
        </Section>
        <Section title={words.factor}>
          <SecondFactor />
        </Section>
        <Section title={words.sessions}>
          <Sessions />
        </Section>
      </Stack>
    </Page>
  )
}

/** Changes the password. Passwords are never kept as a draft. */
function Password() {
  return (
    <Box maw={400}>
      <Form
        saved={NOTHING}
        send={changePassword}
        done={words.passwordChanged}
        submit={words.changePassword}
      >
        {({ text }) => (
          <>
            <Hint>{words.passwordHint}</Hint>
            {NAMES.map((name) => (
              <PasswordInput
                key={name}
                required
                label={words[name]}
                autoComplete={name === 'oldPassword' ? 'current-password' : 'new-password'}
                {...text(name)}
              />
            ))}
          </>
        )}
      </Form>
    </Box>
  )
}

async function changePassword(typed: typeof NOTHING): Promise<unknown> {
  const { oldPassword, newPassword, repeated } = typed
  if (newPassword !== repeated) {
    throw new OperationOutcomeError(badRequest(words.notRepeated, 'repeated'))
  }
  return await medplum.post('auth/changepassword', { oldPassword, newPassword })
}

interface Status {
  readonly enrolled: boolean
  /** Absent when the sign-in is not recent. */
  readonly enrollUri?: string
  readonly enrollQrCode?: string
}

function SecondFactor() {
  const found = useGet<Status>('auth/mfa/status')
  return (
    <Loaded query={found}>
      {({ enrolled, enrollUri, enrollQrCode }) => {
        if (enrolled) return <CodeForm key="disable" action="disable" hint={words.factorOn} />
        if (enrollUri === undefined) return <SignInFirst />
        return (
          <Stack>
            <Text size="sm">{words.factorOff}</Text>
            <Image src={enrollQrCode} alt={words.qrCode} w={200} h={200} bg="white" />
            <Text size="sm" style={{ overflowWrap: 'anywhere' }}>
              {words.key} <Code>{readSecret(enrollUri)}</Code>
            </Text>
            <CodeForm key="enroll" action="enroll" hint={words.enterCode} />
          </Stack>
        )
      }}
    </Loaded>
  )
}

function readSecret(uri: string): string {
  return new URL(uri).searchParams.get('secret') ?? uri
}

function SignInFirst() {
  return (
    <Stack align="flex-start">
      <Text size="sm">{words.signInFirst}</Text>
      <Button variant="default" onClick={() => void signOut()}>
        {texts.app.signOut}
      </Button>
    </Stack>
  )
}

interface FormProps {
  readonly action: 'enroll' | 'disable'
  readonly hint: string
}

function CodeForm({ action, hint }: FormProps) {
  return (
    <Box maw={400}>
      <Form
        saved={{ token: '', password: '' }}
        send={({ token, password }) =>
          medplum.post(`auth/mfa/${action}`, {
            token: token.trim(),
            ...(password === '' ? {} : { password }),
          })
        }
        done={words.factorDone[action]}
        submit={words.factorActions[action]}
        variant={action === 'disable' ? 'default' : 'filled'}
      >
        {({ text }) => (
          <>
            <Text size="sm">{hint}</Text>
            <TextInput
              required
              label={words.code}
              inputMode="numeric"
              autoComplete="one-time-code"
              {...text('token')}
            />
            <PasswordInput
              label={words.oldPassword}
              description={words.passwordIfOld}
              autoComplete="current-password"
              {...text('password')}
            />
          </>
        )}
      </Form>
    </Box>
  )
}

interface Session {
  readonly id: string
  readonly lastUpdated?: string
  readonly remoteAddress?: string
  readonly browser?: string
  readonly os?: string
}

interface Own {
  readonly security?: { readonly sessions?: readonly Session[] }
}

function Sessions() {
  const found = useGet<Own>('auth/me')
  const revoke = useSend<string>({
    send: (loginId) => medplum.post('auth/revoke', { loginId }),
    done: words.revoked,
  })
  const current = currentLogin()
  return (
    <QueryTable
      query={found}
      label={words.sessions}
      rows={({ security }) => security?.sessions ?? []}
      rowKey={({ id }) => id}
      columns={[
        { name: words.device, cell: deviceName },
        { name: words.address, cell: ({ remoteAddress = '' }) => remoteAddress },
        { name: words.used, cell: ({ lastUpdated }) => <When at={lastUpdated} /> },
        {
          name: words.end,
          cell: (session) =>
            session.id === current ? (
              <Badge variant="light" tt="none">
                {words.thisOne}
              </Badge>
            ) : (
              <Button
                variant="default"
                size="compact-sm"
                aria-label={fill(words.endOf, { device: deviceName(session) })}
                loading={revoke.isPending && revoke.variables === session.id}
                onClick={() => revoke.mutate(session.id)}
              >
                {words.end}
              </Button>
            ),
        },
      ]}
    />
  )
}

function deviceName({ browser, os }: Session): string {
  return [browser, os].filter(Boolean).join(', ') || words.unknownDevice
}

function currentLogin(): unknown {
  const token = medplum.getAccessToken()
  return token === undefined ? undefined : parseJWTPayload(token).login_id
}
