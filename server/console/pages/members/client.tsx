/** A client, the account of a program. Its secret is shown only at creation. */
import {
  Alert,
  Button,
  Code,
  CopyButton,
  Group,
  Paper,
  Stack,
  Text,
  Textarea,
  TextInput,
} from '@mantine/core'
import type { ClientApplication } from '@medplum/fhirtypes'
import { useState } from 'react'
import { Link } from 'wouter'
import { replaceVersion, useGet, useSend } from '../../client/api.ts'
import { medplum, useMe } from '../../client/session.ts'
import { Confirm } from '../../parts/action.tsx'
import { Form } from '../../parts/form.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { Hint } from '../../parts/text.tsx'
import { texts } from '../../texts/texts.ts'

const words = texts.members

interface Values {
  readonly name: string
  readonly description: string
  readonly redirectUris: string
}

export function NewClient() {
  const { project } = useMe()
  const [made, setMade] = useState<ClientApplication>()
  const send = (values: Values): Promise<ClientApplication> =>
    medplum.post(`admin/projects/${project.id}/client`, toClientBody(values))
  return (
    <Page title={words.newClient} hint={words.newClientHint}>
      {made ? (
        <Secret client={made} />
      ) : (
        <Paper maw={640}>
          <Form
            name="new-client"
            saved={{ name: '', description: '', redirectUris: '' }}
            send={send}
            after={setMade}
            submit={words.newClient}
          >
            {(fields) => <ClientFields text={fields.text} />}
          </Form>
        </Paper>
      )}
    </Page>
  )
}

function ClientFields({ text }: { readonly text: (name: keyof Values) => object }) {
  return (
    <>
      <TextInput required label={words.name} {...text('name')} />
      <TextInput label={words.description} {...text('description')} />
      <Textarea
        label={words.redirects}
        description={words.redirectsHint}
        autosize
        minRows={2}
        {...text('redirectUris')}
      />
    </>
  )
}

function toClientBody({ name, description, redirectUris }: Values) {
  const addresses = redirectUris.split(/\s+/).filter((address) => address !== '')
  return {
    name,
    ...(description === '' ? {} : { description }),
    ...(addresses.length === 0 ? {} : { redirectUris: addresses }),
  }
}

interface SecretProps {
  readonly client: ClientApplication
}

function Secret({ client: { id, secret = '' } }: SecretProps) {
  return (
    <Alert color="yellow" role="status">
      <Stack gap="xs">
        <Text size="sm" fw={600}>
          {words.secretOnce}
        </Text>
        <Text size="sm">
          {words.clientId}: <Code>{id}</Code>
        </Text>
        <Text size="sm" style={{ overflowWrap: 'anywhere' }}>
          {words.secret}: <Code>{secret}</Code>
        </Text>
        <Group>
          <CopyButton value={secret}>
            {({ copied, copy }) => (
              <Button size="xs" variant="default" onClick={copy}>
                {copied ? texts.common.copied : texts.common.copy}
              </Button>
            )}
          </CopyButton>
          <Button size="xs" variant="default" component={Link} href="/members/clients">
            {words.toClients}
          </Button>
        </Group>
      </Stack>
    </Alert>
  )
}

export function ClientPart({ id }: { readonly id: string }) {
  const address = `fhir/R4/ClientApplication/${id}`
  const found = useGet<ClientApplication>(address)
  return (
    <Loaded query={found}>
      {(client) => {
        const { name = '', description = '', redirectUris = [], redirectUri, meta } = client
        const { redirectUris: _, redirectUri: __, description: ___, ...others } = client
        // Both elements are valid addresses of the client.
        const addresses = new Set([...redirectUris, ...(redirectUri ? [redirectUri] : [])])
        return (
          <Stack>
            <Rotation client={client} />
            <Form
              key={id}
              name={`client:${id}`}
              saved={{ name, description, redirectUris: [...addresses].join('\n') }}
              edits={{ path: address, version: meta?.versionId }}
              send={(values: Values, { version }) =>
                replaceVersion(address, { ...others, ...toClientBody(values) }, version)
              }
              done={texts.common.saved}
            >
              {(fields) => <ClientFields text={fields.text} />}
            </Form>
          </Stack>
        )
      }}
    </Loaded>
  )
}

function Rotation({ client }: SecretProps) {
  const { id, secret, retiringSecret } = client
  const [made, setMade] = useState<ClientApplication>()
  const rotate = useSend<object, ClientApplication>({
    send: (body) => medplum.post(`fhir/R4/ClientApplication/${id}/$rotate-secret`, body),
    after: (changed) => setMade(changed.retiringSecret ? changed : undefined),
    done: words.rotated,
  })
  return (
    <Stack gap="xs">
      {made && <Secret client={made} />}
      <Hint>{retiringSecret ? words.twoSecrets : words.rotateHint}</Hint>
      <Group>
        {secret && !retiringSecret && (
          <Button variant="default" onClick={() => rotate.mutate({ secret })}>
            {words.rotate}
          </Button>
        )}
        {retiringSecret && (
          <Confirm
            label={words.retire}
            confirm={words.retire}
            onConfirm={() => rotate.mutate({ retiringSecret })}
          >
            <Text size="sm">{words.retireHint}</Text>
          </Confirm>
        )}
      </Group>
    </Stack>
  )
}
