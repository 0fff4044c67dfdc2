/** Where the apps of the project are served, with keys of their own. */
import { Group, Stack, Text, Textarea, TextInput } from '@mantine/core'
import type { ProjectSite } from '@medplum/fhirtypes'
import { useSend } from '../../api.ts'
import { Confirm } from '../../parts/confirm.tsx'
import { Empty } from '../../parts/empty.tsx'
import { Form } from '../../parts/form.tsx'
import { DataTable } from '../../parts/table.tsx'
import { medplum } from '../../session.ts'
import { fill, texts } from '../../texts/texts.ts'

const words = texts.project
const nowhere = { site: '', domain: '', googleClientId: '', recaptchaSiteKey: '' }

interface Props {
  readonly address: string
  readonly sites: readonly ProjectSite[]
}

export function Sites({ address, sites }: Props) {
  const write = (all: readonly ProjectSite[]) => medplum.post(`${address}/sites`, all)
  const remove = useSend<readonly ProjectSite[]>({ send: write, done: texts.common.saved })
  return (
    <Stack>
      <DataTable
        label={words.tabs.sites}
        rows={sites}
        keyOf={({ name = '' }) => name}
        empty={<Empty title={words.noSites} hint={words.noSitesHint} />}
        columns={[
          { name: words.name, cell: ({ name }) => name },
          { name: words.domains, cell: ({ domain }) => domain.join(', ') },
          {
            name: words.actions,
            cell: (site) => (
              <Confirm
                label={texts.common.delete}
                confirm={texts.common.delete}
                onConfirm={() => remove.mutate(sites.filter((one) => one !== site))}
              >
                <Text size="sm">{fill(words.deleteSite, { name: site.name ?? '' })}</Text>
              </Confirm>
            ),
          },
        ]}
      />
      <Text fw={600}>{words.addSite}</Text>
      <Form
        name="project-site"
        saved={nowhere}
        send={(values) => write([...sites, siteOf(values)])}
        done={texts.common.saved}
      >
        {({ text }) => (
          <>
            <TextInput label={words.name} {...text('site')} />
            <Textarea
              label={words.domains}
              description={words.domainsHint}
              autosize
              minRows={2}
              {...text('domain')}
            />
            <Group grow align="start">
              <TextInput label={words.googleClientId} {...text('googleClientId')} />
              <TextInput label={words.recaptchaSiteKey} {...text('recaptchaSiteKey')} />
            </Group>
          </>
        )}
      </Form>
    </Stack>
  )
}

function siteOf({ site, domain, googleClientId, recaptchaSiteKey }: typeof nowhere): ProjectSite {
  return {
    name: site,
    domain: domain.split(/\s+/).filter((name) => name !== ''),
    ...(googleClientId === '' ? {} : { googleClientId }),
    ...(recaptchaSiteKey === '' ? {} : { recaptchaSiteKey }),
  }
}
