/** Sets up and disables the second factor. */
import { Box, Button, Code, Image, PasswordInput, Stack, Text, TextInput } from '@mantine/core'
import { useGet } from '../../client/api.ts'
import { medplum, signOut } from '../../client/session.ts'
import { Form } from '../../parts/form.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { texts } from '../../texts/texts.ts'

const words = texts.profile

interface Status {
  readonly enrolled: boolean
  /** Absent when the sign-in is not recent. */
  readonly enrollUri?: string
  readonly enrollQrCode?: string
}

export function SecondFactor() {
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
