# A server or a site of a federation.  Everything that is installed and started is in containers/, which also runs
# without Docker: see `containers/check`.
FROM python:3.11-slim
COPY . /src
RUN /src/containers/install /opt/hansa
ENV PATH=/opt/hansa/bin:$PATH
ENTRYPOINT ["/src/containers/start"]
